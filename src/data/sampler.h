// Which records make up each micro-batch of each step. A pure function of the seed, the data's
// lengths and the two batch sizes; how the micro-batches of a step are spread over ranks and
// accumulation steps plays no part in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ullage::data {

struct SamplerOptions {
  std::int64_t train_batch = 1;  // records in one optimizer step, over all ranks
  std::int64_t micro_batch = 1;  // records in one forward on one rank; divides train_batch
  // Records of like length that go together; divides train_batch. 0: as micro_batch. A run that is
  // resumed with another micro-batch keeps the number it began with, and so its order.
  std::int64_t order_batch = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;          // false: the order of the file
  bool group_by_length = true;  // micro-batches of records of like length, so that padding is rare
  std::int64_t window_steps = 50;  // records are grouped within this many steps' worth
  bool drop_last = false;          // leave out the records that do not fill a last step
};

// Where an epoch stands; steps count from 0 within the epoch.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  friend bool operator==(const Position&, const Position&) = default;
};

// The records of one epoch, cut into steps and micro-batches.
//
// Every record occurs exactly once, except those of an incomplete last step when they are
// dropped. Kept, they are spread evenly over the micro-batches of that step, some of which then
// have one record less than others, or none.
class EpochOrder {
 public:
  std::int64_t steps() const { return steps_; }
  std::int64_t micro_batches_per_step() const { return micro_batches_; }

  // Micro-batch j of a step. With W ranks, rank r takes j = m * W + r in its micro-step m.
  std::span<const std::int64_t> MicroBatch(std::int64_t step, std::int64_t j) const;
  std::span<const std::int64_t> Step(std::int64_t step) const;  // its micro-batches in sequence

 private:
  friend class Sampler;
  std::vector<std::int64_t> records_;
  std::int64_t train_batch_ = 0;
  std::int64_t micro_batches_ = 0;
  std::int64_t steps_ = 0;
};

// Note [Order of an epoch]
// 1. Shuffle all records by (seed, epoch).
// 2. Cut into windows of `window_steps` steps. In each, sort by length (records of one length stay
//    in shuffled order), cut into parts of `order_batch` and shuffle these by (seed, epoch,
//    window). Each run of train_batch / order_batch parts is one step.
// 3. Within a step, records run from long to short and are cut into micro-batches. Ranks take
// neighbouring ones, so they
//    have about the same work, for any number of ranks.
// An incomplete last step keeps the records that the shuffle put last: it has its own window.
class Sampler {
 public:
  // `lengths[i]` is the number of tokens of record i. Throws ConfigError: no records, a batch size
  // below 1, one that does not divide train_batch, a batch larger than the data.
  Sampler(std::vector<std::int64_t> lengths, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  std::int64_t records() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t steps_per_epoch() const;
  std::int64_t micro_batches_per_step() const {
    return options_.train_batch / options_.micro_batch;
  }

  // O(n log n); keep the result for the epoch. Any thread.
  EpochOrder Order(std::int64_t epoch) const;

  // The position `steps` steps behind the start, over any number of epochs.
  Position After(std::int64_t steps) const;

 private:
  void GroupWindow(std::span<std::int64_t> records, std::uint64_t stream) const;
  void LongestFirst(std::span<std::int64_t> step) const;

  std::vector<std::int64_t> lengths_;
  SamplerOptions options_;
};

}  // namespace ullage::data
