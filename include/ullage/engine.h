// Start here. The engine trains a model in the memory that the settings allow: it owns weights,
// gradients and optimizer state from now on, and hands weights out while operators need them.
//
//   ullage::Engine engine(ullage::NamedParameters(*model),
//                         ullage::Settings::FromFile("ds_config.json"));
//   for (const auto& batch : loader) {
//     at::Tensor loss = engine.Forward([&] { return model->Loss(batch); });
//     engine.Backward(loss);
//     if (engine.IsAccumulationBoundary()) engine.Step();
//   }
//
// The model is not touched: no wrapper, no hooks on modules. Its forward may do what it likes.
// An engine is used by one thread; ranks are processes (or threads, in tests). All ranks call
// Backward, Step, Gather with writes, and the collective functions below equally often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ullage/error.h"
#include "ullage/export.h"
#include "ullage/ranks.h"
#include "ullage/settings.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}
namespace ullage::files {
class FileSystem;
}
namespace ullage::memory {
class Trace;
}

namespace ullage {

// Names and tensors of a model's parameters, in registration order, aliases included.
class ULLAGE_API ParameterList {
 public:
  ParameterList();
  ParameterList(ParameterList&&) noexcept;
  ParameterList& operator=(ParameterList&&) noexcept;
  ~ParameterList();

  void Add(std::string name, const at::Tensor& tensor);
  // Buffers are not managed; their names tell a pattern that matches nothing from one that
  // matches only buffers.
  void AddBuffer(std::string name);
  // The same of a buffer that checkpoints keep, too.
  void AddBuffer(const std::string& name, const at::Tensor& tensor);

  struct Entries;
  const Entries& entries() const { return *entries_; }

 private:
  std::unique_ptr<Entries> entries_;
};

// All parameters of `module` and its submodules; a tensor that appears under several names is
// listed under each.
ULLAGE_API ParameterList NamedParameters(const torch::nn::Module& module);

// Where initial weights come from when the model is built without memory (on the Meta device):
// every rank reads only what it will own.
class ULLAGE_API WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Elements [first, first + values.size()) of the parameter in row-major order. `shape` is the
  // model's. Throws when it has no such parameter or another shape.
  virtual void Read(const std::string& name, std::span<const std::int64_t> shape,
                    std::int64_t first, std::span<float> values) = 0;
};

struct EngineOptions {
  // Random numbers of a forward derive from this, the step and the global micro-batch index.
  std::uint64_t seed = 0;
  // Needed when parameters are on the Meta device; else the tensors' own values (rank 0's) hold.
  WeightSource* weights = nullptr;
  // Regular expressions of parameters without weight decay, unless the settings name their own.
  std::vector<std::string> default_no_decay;
  // The optimizer's groups, instead of those of the settings.
  std::vector<NamedGroup> groups;
  // Run on the current CUDA device: parameters are moved there. Else on the CPU.
  bool cuda = false;
  // Count bytes and run operators on the Meta device, touching no memory.
  bool dry_run = false;
  // Only with ullage.device_memory. What operators hold on the device at their peak beside what the
  // engine does: activations, workspaces, batches. MeasureOperatorBytes finds it. Of several ranks
  // the one with most counts.
  std::int64_t operator_bytes = 0;
  // What lies on the device outside torch's allocator. Absent: what does when the engine is made,
  // and 0 on the CPU and in a dry run.
  std::optional<std::int64_t> outside_bytes = std::nullopt;
  // Host memory that saves in the background may keep state in: SaveOptions::buffer_bytes. It is in
  // the plan, as far as a rank saves so much, and is allocated by the first such save.
  std::int64_t save_buffer_bytes = 0;
  // Hears of every byte that the engine holds where operators run, and of its phases; outlives the
  // engine. The planner's.
  memory::Trace* trace = nullptr;
};

struct StepResult {
  bool applied = false;    // false: a gradient was inf or nan and nothing changed
  double grad_norm = 0;    // global L2 norm of the mean gradient before clipping; inf or nan too
  double clip_coef = 1;    // what clipping multiplied the gradients by
  double lr = 0;           // learning rate of the first group that this step used
  double loss_scale = 1;   // the scale that the backward passes of this step used
  std::string overflowed;  // a parameter with an inf or nan gradient
};

// Byte counts of this rank by tag; names as in the plan.
struct MemoryReport {
  std::vector<std::pair<std::string, std::int64_t>> now;
  std::vector<std::pair<std::string, std::int64_t>> peak;
  std::int64_t peak_total = 0;
  // Of `now`, what lies where operators run.
  std::vector<std::pair<std::string, std::int64_t>> on_device;
};

struct EngineStatistics {
  std::int64_t gathers = 0;  // units of weights brought together
  std::int64_t gathered_bytes = 0;
  std::int64_t gathered_ahead = 0;  // of the units, those there before an operator asked
  std::int64_t gather_overflows = 0;
  std::int64_t allocations = 0;  // of memory by the engine; none are made once a run is under way
  std::int64_t recorded_launches = 0;  // of micro-steps as a whole
  double save_wait_ms = 0;  // that steps waited for, or copied for, saves in the background
  bool records = false;     // whether ForwardBackward records micro-steps; of a dry run, would
};

struct SaveOptions {
  // The caller's own, in UTF-8: LoadCheckpoint hands it back. Rank 0's counts.
  std::string client_state;
  // When above 0, older complete checkpoints of the same folder beyond this many are removed.
  std::int64_t keep = 0;
  // Return at once and write while training goes on. A step that comes to state which is not
  // written yet copies it to a buffer of `buffer_bytes`, or waits where that has no room; with room
  // for all that this rank writes (12 bytes for each of its elements) nothing waits, and more than
  // that is not allocated. The buffer stays for the saves that follow.
  bool background = false;
  std::int64_t buffer_bytes = 0;
  // The disk; a test passes one that fails. Must outlive the call.
  files::FileSystem* file_system = nullptr;
};

struct LoadOptions {
  // Weights and buffers alone: optimizer state, counters, loss scale and random numbers stay as
  // they are.
  bool weights_only = false;
  files::FileSystem* file_system = nullptr;  // as above
};

// What a checkpoint says of the run that wrote it.
struct CheckpointInfo {
  std::string path;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  int world_size = 1;
  std::string client_state;
};

class Engine;

// What EngineOptions::operator_bytes has to be for a run whose largest batches `run` puts through
// Forward and Backward (and through evaluations without gradients, where the run has them). It gets
// an engine that has on the host whatever can be there, with zeros for weights. `parameters` are
// those of a model on the Meta device that is of no use afterwards; `settings` and `options` are
// the run's. To the measured peak 3 % of it and 192 MiB are added, for what torch's allocator
// cannot use between its blocks. Collective. On the CPU the result is 0 and nothing is run.
ULLAGE_API std::int64_t MeasureOperatorBytes(ParameterList parameters, Settings settings,
                                             std::shared_ptr<Ranks> ranks, EngineOptions options,
                                             const std::function<void(Engine&)>& run);

class ULLAGE_API Engine {
 public:
  struct Core;  // defined in src/engine

  // Takes the parameters over. Ranks are found through the environment (ranks.h).
  Engine(ParameterList parameters, Settings settings, EngineOptions options = {});
  Engine(ParameterList parameters, Settings settings, std::shared_ptr<Ranks> ranks,
         EngineOptions options = {});
  // Parameters that every rank holds whole keep their values as ordinary tensors; those that are
  // sliced lose their bytes (export first).
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs `forward` with this micro-batch's random numbers and returns what it returns.
  at::Tensor Forward(const std::function<at::Tensor()>& forward);
  // Runs the backward pass of a scalar loss and reduces the gradients over the ranks. A rank that
  // has nothing to contribute passes an undefined tensor. Returns loss / accumulation steps.
  at::Tensor Backward(const at::Tensor& loss, bool retain_graph = false);
  // A backward pass may also be run by the caller (`loss.backward()`), on every rank equally often;
  // it counts as one Backward. With fp16 its loss has to be multiplied by the loss scale: this does
  // it. Throws in the middle of such a pass when that was forgotten.
  at::Tensor Scale(const at::Tensor& loss);
  // One micro-step, Forward and Backward, as a function of tensors: `compute` gets `inputs` (some
  // may be undefined) and returns the loss that is differentiated and then whatever else the caller
  // wants to see. Returns the same values, detached.
  // On CUDA such a step may be recorded and launched as a whole from the second time that inputs of
  // these shapes come (ullage.cuda_graphs), with the same bits. So `compute` must do the same work
  // for inputs of the same shapes: what it reads besides is what it was when it was recorded, but
  // for parameters and torch's random numbers. It is not called then.
  using MicroStep = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
  std::vector<at::Tensor> ForwardBackward(const std::vector<at::Tensor>& inputs,
                                          const MicroStep& compute);
  // Drops the gradients since the last Step.
  void ClearGradients();
  // Mean gradient, norm, clip, update, next learning rate. Any number of Backward calls may have
  // come before; their sum is divided by accumulation steps * ranks.
  StepResult Step();
  // Whether as many Backward calls were made since the last Step as there are accumulation steps.
  bool IsAccumulationBoundary() const;

  // Holds all bytes of the named parameters present, for raw access. With `write`, what was
  // written is kept; every rank must then do the same. Empty: all parameters.
  class ULLAGE_API Gathered {
   public:
    Gathered(Gathered&&) noexcept;
    ~Gathered() noexcept(false);

   private:
    friend class Engine;
    struct State;
    explicit Gathered(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };
  Gathered Gather(const std::vector<std::string>& names = {}, bool write = false);

  // Collective: hands every distinct parameter's fp32 values (the master where there is one), in
  // registration order and in pieces of at most a few MB, to `take` on every rank.
  struct ParameterPiece {
    const std::string* name = nullptr;
    std::span<const std::int64_t> shape;
    std::int64_t first = 0;  // element of the parameter
    std::span<const float> values;
  };
  void ForEachParameter(const std::function<void(const ParameterPiece&)>& take);
  // Collective: SHA-256 over name, shape and fp32 values of every distinct parameter.
  std::string ParametersSha256();

  // Collective: the whole of something of one parameter, in fp32 on the CPU and of its shape, on
  // every rank. `part`: "value" (the master where there is one), "gradient" (the mean over the
  // micro-steps so far and the ranks; throws StateError when there was no backward pass), or a
  // moment of the optimizer ("exp_avg", "exp_avg_sq", "momentum_buffer"). Throws ConfigError for
  // names that do not exist, also for the gradient or a moment of a frozen parameter.
  at::Tensor ReadWhole(const std::string& parameter, const std::string& part);
  // Collective: replaces it. Every rank passes the same values.
  void WriteWhole(const std::string& parameter, const std::string& part, const at::Tensor& values);

  // Collective, between Step and the next Backward: writes everything that training goes on with
  // to "<folder>/step-<steps>", each rank its slices, and returns that path. `folder` must be the
  // same directory on every rank. The checkpoint appears when it is complete and on the disk, a
  // file `latest` then names it; whatever fails or is killed before leaves the older ones as they
  // were. Throws on every rank what went wrong on one (IoError for a full disk and the like); the
  // engine is as before then and training may go on. Reads a few MB at a time.
  std::string SaveCheckpoint(const std::string& folder, const SaveOptions& options = {});
  // Collective: waits for a save in the background; throws as SaveCheckpoint what went wrong with
  // it. The next save, loading and the engine's end wait by themselves; a failure is then thrown by
  // the next save, or else logged.
  void FinishSaving();
  // Collective, between Step and the next Backward: goes on from a checkpoint that any number of
  // ranks at any stage, placement and precision has written. `path` is a checkpoint, or a folder of
  // them, of which it takes the one that `latest` names or else the newest complete one. Each rank
  // reads only what it owns, and verifies it. The seed and the state of torch's random generators
  // (at an equal number of ranks) come from the checkpoint. Throws IoError for a damaged or missing
  // file, ConfigError when it does not fit the model or the optimizer: what was found before the
  // first value was taken leaves the engine as it was; after damage found later the ranks are
  // stopped, and the engine must be made anew.
  CheckpointInfo LoadCheckpoint(const std::string& path, const LoadOptions& options = {});

  const Settings& settings() const;
  const BatchSizes& batch_sizes() const;
  const Ranks& ranks() const;
  std::int64_t applied_steps() const;
  std::int64_t skipped_steps() const;
  double lr() const;  // that the next step will use
  // The optimizer's groups, each with the learning rate that the next step will use.
  std::vector<NamedGroup> groups() const;
  // From the next step on. Without `lr` the scheduler's holds again.
  void SetGroup(std::size_t group, std::optional<double> lr, double weight_decay);
  // Of the steps to come; batch_sizes().train_batch follows. Between Step and the next Backward.
  void SetAccumulationSteps(std::int64_t steps);
  double loss_scale() const;
  MemoryReport memory() const;
  // What this rank's plan predicts, by tag.
  std::vector<std::pair<std::string, std::int64_t>> planned_bytes() const;
  // The same of all tags together on one tier: "device", "host" or "disk".
  std::int64_t planned_bytes_on(std::string_view tier) const;
  EngineStatistics statistics() const;
  std::string PlanText() const;
  std::string PlanJson() const;
  // Lines for the start of a run: parameter groups and what was decided without being asked.
  std::vector<std::string> StartLines() const;

 private:
  std::unique_ptr<Core> core_;
};

}  // namespace ullage
