// What an engine is made of. Lower members use those above them and go first when it ends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/tiered_window.h"
#include "engine/device_cap.h"
#include "engine/parameter_list.h"
#include "grads/gradient_reducer.h"
#include "memory/buffer.h"
#include "memory/device_arena.h"
#include "optim/disk_state.h"
#include "optim/gradient_norm.h"
#include "optim/host_updates.h"
#include "optim/loss_scale.h"
#include "optim/parameter_groups.h"
#include "optim/schedule.h"
#include "optim/slice_optimizer.h"
#include "params/parameter_store.h"
#include "plan/window_plan.h"
#include "tiers/host_arena.h"
#include "ullage/engine.h"

namespace ullage {

namespace engine {
class RecordedPasses;
class Saver;
}  // namespace engine

struct Engine::Core {
  Core(const ParameterList& list, Settings settings, std::shared_ptr<Ranks> ranks,
       const EngineOptions& options);
  ~Core();

  comm::Comm& comm() { return ranks->comm(); }
  void AllocateArenas();
  optim::DiskPlace StatePlace() const;
  void NoteStateOnDisk();
  void UpdateWeights(const optim::StepParameters& with);
  void NoteUpdateTraffic();
  void ListenToOutsidePasses();
  // Before the operators of a forward: the seed of their random numbers.
  std::uint64_t BeginForward();
  at::Tensor Forward(const std::function<at::Tensor()>& forward);
  // `loss` without a graph contributes zeros.
  void Backward(const at::Tensor& loss, bool retain_graph);
  void EndBackward();
  std::vector<at::Tensor> RunMicroStep(const std::vector<at::Tensor>& inputs,
                                       const MicroStep& compute);
  // Before a boundary of the step: what an error in the caller's backward pass left behind.
  void CheckPassIsOver();
  void AskForTheRestOfTheDevice(const EngineOptions& options, plan::Target& target);
  double accumulation() const {
    return static_cast<double>(batch_sizes.accumulation_steps) * ranks->world_size();
  }
  // Runs `body`; when it throws, the other ranks are told before the error goes on. A rank that is
  // alone may mend the cause and go on.
  template <typename Body>
  auto TellingOthers(const Body& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      if (ranks->world_size() > 1) ranks->Abort(error.what());
      throw;
    }
  }

  const Settings settings;
  const std::shared_ptr<Ranks> ranks;
  BatchSizes batch_sizes;
  std::uint64_t seed;              // a checkpoint that is loaded brings its own
  std::vector<std::string> notes;  // for the start of a run
  memory::Memory memory;
  engine::DeviceCap cap;

  std::vector<engine::DistinctParameter> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;  // the model's, for checkpoints
  plan::Plan plan;
  plan::WindowPlan window_plan;
  std::optional<memory::DeviceArena> device_arena;
  std::optional<tiers::HostArena> arena;  // of buffers on the host, when the device is another
  std::unique_ptr<comm::TieredWindow> window;
  optim::Groups groups;
  optim::Schedule schedule;
  optim::LossScaler scaler;
  std::unique_ptr<params::ParameterStore> store;
  std::unique_ptr<grads::GradientReducer> gradients;
  std::unique_ptr<optim::NormMeter> norm;
  std::unique_ptr<optim::DiskState> disk_state;
  std::unique_ptr<optim::SliceOptimizer> optimizer;
  std::unique_ptr<optim::HostUpdates> host_updates;
  std::unique_ptr<engine::RecordedPasses> recorded;
  std::unique_ptr<engine::Saver> saver;

  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t backwards = 0;   // since the last step
  std::int64_t forwards = 0;    // since the last backward
  bool loss_is_scaled = false;  // by Scale, for the pass that comes
  bool warned_of_accumulation = false;
  const int exceptions_at_start;
};

namespace engine {

// Which part of parameter `index` this rank must give values to: elements [begin, end) of it.
struct HeldRange {
  int unit = -1;  // -1: the parameter has no elements
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t held_offset = 0;  // where `begin` lies in what this rank holds of the unit
};
HeldRange HeldRangeOf(const plan::Plan& plan, int rank, int parameter);
// The index of a parameter. Throws ConfigError when there is none of that name.
int FindParameter(const plan::Plan& plan, const std::string& name);

}  // namespace engine
}  // namespace ullage
