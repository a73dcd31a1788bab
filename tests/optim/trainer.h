// Store, reducer and optimizer of one rank put together as a step needs them.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "optim/gradient_norm.h"
#include "optim/slice_optimizer.h"

namespace ullage::optim {

struct TrainerOptions {
  int world_size = 1;
  int stage = 0;
  std::int64_t unit_bytes = 2048;
  std::int64_t persistence_threshold = 0;
  Precision precision = Precision::kFloat32;
  OptimizerSettings optimizer = {};
  std::vector<ParameterGroupSettings> groups = {};
  std::optional<double> offload_optimizer = {};  // the ratio
  bool to_disk = false;                          // else the host
  std::int64_t disk_part_numel = 0;              // 0: as planned
  tiers::DiskOptions disk = {};
  bool offload_param = false;
  std::optional<std::int64_t> prefetch_numel = {};
  int accumulation_steps = 1;  // more than one: a single rank has fp32 sums
};

// Every way to place weights and state on the tiers that the stage allows.
std::vector<TrainerOptions> EachTier(const TrainerOptions& options);

class Trainer {
 public:
  Trainer(comm::Comm& comm, const TrainerOptions& options, bool dry = false);

  comm::Comm& comm;
  Settings settings;
  plan::Plan plan;
  plan::WindowPlan window_plan;
  memory::Memory memory;
  memory::Ledger& ledger = memory.ledger();
  std::unique_ptr<comm::TieredWindow> window;
  Groups groups;
  std::unique_ptr<params::ParameterStore> store;
  std::unique_ptr<grads::GradientReducer> reducer;
  std::unique_ptr<NormMeter> norm;
  std::unique_ptr<DiskState> disk_state;
  std::unique_ptr<SliceOptimizer> optimizer;
  std::vector<at::Tensor> weights;  // by parameter

  // fp32 values that a parameter starts with; more digits than 16 bits hold.
  at::Tensor Start(int p) const;
  // The gradient of a rank in a step, in the weights' dtype.
  at::Tensor Gradient(int p, int step, int rank) const;
  // One backward pass with this rank's gradients, and the step that follows. `steps` counts from 1.
  void Step(int step);
  StepParameters Parameters(int step) const;
  // The fp32 values of what this rank holds of `p`, and which elements of it those are.
  struct Held {
    std::int64_t first = 0;
    at::Tensor values;
  };
  Held Master(int p) const;
  bool IsTrained(int p) const { return plan.parameters[static_cast<std::size_t>(p)].trainable; }
  int count() const { return static_cast<int>(weights.size()); }
};

void OnTrainers(const TrainerOptions& options, const std::function<void(Trainer&)>& body);

// A model of whole parameters, updated one by one with the plain kernels.
class Reference {
 public:
  explicit Reference(const Trainer& trainer);
  void Step(int step);
  const at::Tensor& master(int p) const { return master_[static_cast<std::size_t>(p)]; }
  at::Tensor& master(int p) { return master_[static_cast<std::size_t>(p)]; }
  // As the model sees them.
  at::Tensor Weights(int p) const;

 private:
  const Trainer& trainer_;
  std::vector<at::Tensor> master_, first_, second_;
};

// Weights and held masters of the trainer are those of the reference, bit for bit.
void ExpectLike(Trainer& trainer, const Reference& reference);

}  // namespace ullage::optim
