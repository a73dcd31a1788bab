// The optimizer on slices: master weights, moments, and the update in one pass.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "grads/gradient_reducer.h"
#include "kernels/adamw.h"
#include "kernels/sgd.h"
#include "kernels/update_part.h"
#include "kernels/weights.h"
#include "memory/buffer.h"
#include "optim/disk_state.h"
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

// What an update reads and writes: elements from `first` on of what this rank holds of a unit. The
// moments are one array after the other, `moment_numel` elements each; without moments, null.
struct StateArrays {
  std::int64_t first = 0;
  std::byte* weights = nullptr;
  std::byte* extension = nullptr;  // what 16-bit weights lack of their fp32 values
  float* moments = nullptr;
  std::int64_t moment_numel = 0;
  grads::UnitSums gradients;
};

class SliceOptimizer {
 public:
  // All references must outlive the optimizer.
  SliceOptimizer(const plan::Plan& plan, const OptimizerSettings& settings, const Groups& groups,
                 params::ParameterStore& weights, grads::GradientReducer& gradients,
                 DiskState& disk, comm::Comm& comm, memory::Memory& memory);

  // The exact fp32 values of elements from `first` on of what this rank holds of `unit`
  // (Plan::HeldNumel), frozen units included. Not in a dry run.
  void StoreMaster(int unit, std::int64_t first, std::span<const float> values);
  void LoadMaster(int unit, std::int64_t first, std::span<float> values);
  // The same of moment `moment` (from 0, below Plan::moments) of a trainable unit.
  void StoreMoment(int unit, int moment, std::int64_t first, std::span<const float> values);
  void LoadMoment(int unit, int moment, std::int64_t first, std::span<float> values);

  // Updates what this rank holds of a trainable unit from its gradient sums, and with it the
  // weights, in one pass. The update of units at home on a CUDA device is only queued. Not of units
  // whose state is on disk.
  void Update(int unit, const StepParameters& step);
  // The same of all units whose state is on disk, with the host's cores; `done` is called after
  // each. Throws as DiskState::Stream.
  void UpdateOnDisk(const StepParameters& step, const std::function<void(int unit)>& done);
  // The same for several; those at home on a CUDA device whose sums are here are one launch.
  void Update(std::span<const int> units, const StepParameters& step);

  // Where the state of `unit` lies at home. Of what is on disk: null.
  StateArrays Arrays(int unit) const;
  // `arrays` from element `first` on.
  StateArrays From(int unit, const StateArrays& arrays, std::int64_t first) const;
  // Updates elements [begin, end) in `arrays`, which are those at home or copies of them, on the
  // device's `stream` or on the host.
  void UpdateRange(int unit, std::int64_t begin, std::int64_t end, const StateArrays& arrays,
                   const StepParameters& step, bool on_cuda, void* stream);

  // The user wrote to weights that this rank holds: ParameterStore::WriteListener.
  void AdoptWrite(int unit, std::int64_t first, std::int64_t numel, const void* before);

 private:
  struct Segment {  // of one group; offsets in what this rank holds
    std::int64_t begin;
    std::int64_t end;
    int group;
  };
  struct UnitState {
    memory::Buffer extension;  // what 16-bit weights lack of their fp32 values
    memory::Buffer moments;    // one array after the other, each as long as what this rank holds
    std::vector<Segment> segments;
    std::int64_t numel = 0;  // what this rank holds, padding included
  };

  std::vector<Segment> MakeSegments(int unit) const;
  // Calls `body` with ranges of weights at home and what they lack of their fp32 values, and where
  // each begins, counted from `first`: one range unless that lies on disk, which is read or written
  // as `access` says. Only where a CPU can touch them.
  void ForEachRange(int unit, std::int64_t first, std::int64_t numel, DiskAccess access,
                    const std::function<void(const kernels::WeightRange& range, std::int64_t begin,
                                             std::int64_t numel)>& body);
  // Adds what elements [begin, end) of `unit` have of each group; `arrays` are those from
  // arrays.first on. A part's step is its group.
  void AddParts(int unit, std::int64_t begin, std::int64_t end, const StateArrays& arrays,
                std::vector<kernels::UpdatePart>& parts) const;
  void Run(std::span<const kernels::UpdatePart> parts, const StepParameters& step, bool on_cuda,
           void* stream) const;
  kernels::AdamWStep AdamWStepOf(const Group& group, const StepParameters& step) const;
  kernels::SgdStep SgdStepOf(const Group& group, const StepParameters& step) const;
  kernels::WeightRange Range(int unit, std::int64_t first) const;
  bool OnCuda(int unit) const { return memory_.OnCuda(unit_plan(unit).home); }
  void* Stream() const { return torchx::Queue::OfOperators(memory_.device()).stream(); }
  const plan::UnitPlan& unit_plan(int unit) const {
    return plan_.units[static_cast<std::size_t>(unit)];
  }

  const plan::Plan& plan_;
  const OptimizerSettings settings_;
  const Groups& groups_;
  params::ParameterStore& weights_;
  grads::GradientReducer& gradients_;
  DiskState& disk_;
  comm::Comm& comm_;
  memory::Memory& memory_;
  std::vector<UnitState> units_;
  memory::Buffer tile_;  // a peer's gradient sums, when every rank updates everything
};

}  // namespace ullage::optim
