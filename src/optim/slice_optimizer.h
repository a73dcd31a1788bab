// The optimizer on slices: master weights, moments, and the update in one pass.
#pragma once

#include <vector>

#include "grads/gradient_reducer.h"
#include "memory/buffer.h"
#include "optim/parameter_groups.h"
#include "params/parameter_store.h"
#include "ullage/settings.h"

namespace ullage::optim {

// What one step uses, beside the constants of the settings.
struct StepParameters {
  double lr = 0;       // before the groups' factors
  double beta1 = 0.9;  // Adam's first, or SGD's momentum
  double beta2 = 0.999;
  std::int64_t t = 1;         // 1 at the first applied step
  float gradient_factor = 1;  // multiplies the summed gradients
};

class SliceOptimizer {
 public:
  // All references must outlive the optimizer.
  SliceOptimizer(const plan::Plan& plan, const OptimizerSettings& settings, const Groups& groups,
                 params::ParameterStore& weights, grads::GradientReducer& gradients,
                 comm::Comm& comm, memory::Ledger& ledger, memory::Place place);

  // fp32 weights of what this rank updates: its slice, or the whole unit (stage 0). Lies in the
  // weights themselves when those are fp32. Null for frozen units and in a dry run.
  float* Master(int unit) const;

  // Updates what this rank holds of a trainable unit from its gradient sums, and writes the
  // 16-bit weights in the same pass.
  void Update(int unit, const StepParameters& step);

  // The user wrote to the 16-bit weights of `parameter`: elements whose value changed are taken
  // into the master.
  void AdoptWrite(int unit, int parameter);

 private:
  struct Segment {  // of one group; offsets in what this rank holds
    std::int64_t begin;
    std::int64_t end;
    int group;
  };
  struct UnitState {
    memory::Buffer master;   // 16-bit weights only
    memory::Buffer moments;  // one array after the other, each as long as what this rank holds
    std::vector<Segment> segments;
    std::int64_t numel = 0;  // what this rank holds, padding included
  };

  std::vector<Segment> MakeSegments(int unit) const;
  void UpdateRange(int unit, std::int64_t begin, std::int64_t end, const float* gradients,
                   const StepParameters& step);
  std::byte* Weights(int unit) const;
  const plan::UnitPlan& unit_plan(int unit) const {
    return plan_.units[static_cast<std::size_t>(unit)];
  }

  const plan::Plan& plan_;
  const OptimizerSettings settings_;
  const Groups& groups_;
  params::ParameterStore& weights_;
  grads::GradientReducer& gradients_;
  comm::Comm& comm_;
  const memory::Place place_;
  std::vector<UnitState> units_;
  memory::Buffer tile_;  // a peer's gradient sums, when every rank updates everything
};

}  // namespace ullage::optim
