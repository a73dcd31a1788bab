// The micro-batches of one rank, in the order in which it trains or evaluates on them, read ahead
// on a thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/batch.h"
#include "data/prefetcher.h"
#include "data/sampler.h"
#include "data/training_data.h"

namespace ullage::data {

struct LoaderOptions {
  int rank = 0;
  int world_size = 1;
  PaddingOptions padding = {};  // not for packed rows
  std::size_t prefetch = 4;     // micro-batches made ahead
};

// Training: epoch after epoch, for ever. Each step has `accumulation_steps()` micro-batches on each
// rank. One consumer thread; `data` must outlive it. May be destroyed at any moment.
class Loader {
 public:
  // Starts at `start`, which may be any step of any epoch. Throws ConfigError when the
  // micro-batches of a step cannot be dealt out evenly to the ranks, or `start` is no step.
  Loader(const TrainingData& data, Sampler sampler, const LoaderOptions& options,
         Position start = {});

  std::int64_t accumulation_steps() const { return accumulation_steps_; }
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // The next micro-batch of this rank. Throws what the thread met (IoError), also when called
  // again.
  Batch Next();

  // The step that Next() will go on with. In the middle of a step it is that step: a loader started
  // there begins it anew. Exact whatever was read ahead.
  Position position() const { return position_; }

  // Padding of what Next() gave out so far on this rank.
  std::int64_t real_tokens() const { return real_tokens_; }
  std::int64_t padded_tokens() const { return padded_tokens_; }

 private:
  std::int64_t accumulation_steps_;
  std::int64_t steps_per_epoch_;
  Position position_;
  std::int64_t taken_ = 0;  // micro-batches of this step that were given out
  std::int64_t real_tokens_ = 0;
  std::int64_t padded_tokens_ = 0;
  std::unique_ptr<Prefetcher<Batch>> prefetcher_;  // last: its thread ends first
};

// Evaluation: every record once, over all ranks. Records are sorted by length and cut into
// micro-batches, which the ranks take in turn. All ranks get the same number of batches; the last
// may be smaller or have no records, so that ranks stay in step.
class EvaluationLoader {
 public:
  // Throws ConfigError for an empty data set or a micro_batch below 1.
  EvaluationLoader(const TrainingData& data, std::int64_t micro_batch,
                   const LoaderOptions& options);

  std::int64_t batches() const { return batches_; }  // on this rank, as on every other

  // The next batch; nullopt after the last. Throws what the thread met.
  std::optional<Batch> Next() { return prefetcher_->Next(); }

 private:
  std::int64_t batches_ = 0;
  std::unique_ptr<Prefetcher<Batch>> prefetcher_;
};

}  // namespace ullage::data
