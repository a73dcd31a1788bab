// Micro-steps that are launched as a whole on CUDA, after the first of their shape was recorded.
//
// Note [Recorded passes]
// A pass of BERT-base on 16 records of 128 tokens is 480 kernels that a GPU has done in 5 ms, and
// the host needs 30 ms to launch them. So forward and backward of a micro-step are recorded the
// second time that inputs of a shape come (torchx/recording.h), and launched at once from then on.
// The bits are those of separate launches: inputs are copied to where the recorded ones lay, seeds
// of dropout to a table on the device, torch's own generator of the device is handled by torch.
// What the engine notes in a pass besides (which parameters got gradients) is noted again.
//
// Only where a pass neither waits nor copies: one rank, weights and state on the device, nothing
// recomputed (whose generators are put back in the middle of a pass).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core.h"
#include "torchx/random.h"
#include "torchx/recording.h"

namespace ullage::engine {

class RecordedPasses {
 public:
  // `core` must outlive this. Whether passes may be recorded is settled here, by `settings` and
  // plan. Throws ConfigError when the settings ask for what cannot be.
  explicit RecordedPasses(Engine::Core& core);

  std::int64_t launches() const { return launches_; }
  // Whether passes are recorded; in a dry run, whether a run's would be.
  bool records() const { return records_ && !gave_up_; }

  // A micro-step of the engine, recorded or not: Engine::ForwardBackward. On CUDA the first one
  // says why none will be recorded, unless the settings ask for that.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& inputs,
                              const Engine::MicroStep& compute);

 private:
  struct Pass {
    std::vector<at::Tensor> inputs;  // where the recorded work reads them
    std::vector<at::Tensor> values;  // what it computes
    std::size_t seeds = 0;
    std::vector<bool> came;                        // by parameter: it got a gradient
    std::unique_ptr<torchx::Recording> recording;  // null: seen once
  };

  void Begin();
  std::vector<at::Tensor> RunRecorded(const std::vector<at::Tensor>& inputs,
                                      const Engine::MicroStep& compute);
  Pass* FindPass(const std::string& key);
  std::vector<at::Tensor> RunOnce(const std::vector<at::Tensor>& inputs,
                                  const Engine::MicroStep& compute);
  void Record(Pass& pass, const std::vector<at::Tensor>& inputs, const Engine::MicroStep& compute,
              std::uint64_t seed);
  std::vector<at::Tensor> Launch(Pass& pass, const std::vector<at::Tensor>& inputs,
                                 std::uint64_t seed);
  void GiveUp(const std::string& reason);

  Engine::Core& core_;
  std::string why_not_;
  std::unique_ptr<torchx::SeedTable> seeds_;
  std::unique_ptr<torchx::Recorder> recorder_;  // null: nothing is recorded
  std::map<std::string, Pass> passes_;          // by the shapes of their inputs
  double scale_ = 0;                            // of their losses
  std::int64_t layout_ = 0;                     // of the sums that they write to
  std::int64_t launches_ = 0;
  std::size_t most_passes_ = 0;
  bool records_ = false;
  bool has_begun_ = false;
  bool gave_up_ = false;
  bool warned_of_shapes_ = false;
};

}  // namespace ullage::engine
