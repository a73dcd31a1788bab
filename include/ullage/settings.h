// The settings of a run: what a ds_config.json says, read strictly. This header is also their
// documentation: each field's default, unit and when to change it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ullage/export.h"

namespace ullage {

enum class Precision : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

// fp16 only. Scale factor of the loss, so that small gradients do not underflow.
struct LossScaleSettings {
  double loss_scale = 0;                // 0: dynamic. Else that constant scale.
  int initial_scale_power = 16;         // The first dynamic scale is 2 to this power.
  int loss_scale_window = 1000;         // Applied steps without overflow before the scale doubles.
  int hysteresis = 2;                   // Overflows tolerated before the scale halves.
  bool consecutive_hysteresis = false;  // Refill the tolerance at every good step.
  double min_loss_scale = 1;            // Overflowing at this scale is an error.
};

enum class OffloadDevice : std::uint8_t { kNone, kCpu, kNvme };

// What is kept off the device. Slower, since it has to cross; the result stays the same, bit for
// bit. "nvme" is for the optimizer alone in this release.
struct OffloadSettings {
  OffloadDevice device = OffloadDevice::kNone;
  // Page-lock the host memory: copies to and from a GPU are faster and do not stop it. Turn it off
  // where little memory may be locked.
  bool pin_memory = true;
  // offload_optimizer only: the share of the optimizer state that is moved, 0 to 1. Lower it as far
  // as the device has room: what stays there is updated faster.
  double ratio = 1.0;
  // Only with kNvme, offload_optimizer: an existing folder on a local disk, where each rank keeps
  // masters and moments in a file of its own for as long as it runs; gradient sums and the weights
  // that are updated stay in host memory. Empty: ullage.disk.path.
  std::string nvme_path;
};

// ZeRO: what each rank keeps only a part of. All sizes are upper bounds; the engine never
// allocates more than the model needs.
struct ZeroSettings {
  int stage = 0;  // 0 nothing; 1 optimizer state; 2 + gradients; 3 + parameters
  std::int64_t reduce_bucket_size = 500'000'000;  // elements in one gradient exchange
  // Elements gathered ahead of their use; 0: none. On a CPU, where a gather is a copy by the same
  // cores, only when the file gives it. Lower it to save memory.
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t param_persistence_threshold = 100'000;  // smaller parameters stay whole (stage 3)
  OffloadSettings offload_optimizer;  // moments, masters, gradient sums; stages 1 to 3
  OffloadSettings offload_param;      // weights, between their uses; stage 3, on one rank too
};

enum class OptimizerType : std::uint8_t { kAdam, kSgd };

// A group of parameters whose names match `pattern` (a regular expression, searched anywhere in
// the name) and that are treated differently. The first group that matches holds.
struct ParameterGroupSettings {
  std::string pattern;
  std::optional<double> lr_factor = std::nullopt;  // multiplies the scheduled learning rate
  std::optional<double> lr =
      std::nullopt;  // replaces the base learning rate of the optimizer section
  std::optional<double> weight_decay = std::nullopt;
};

// A group of parameters by their names, for callers that have them in hand.
struct NamedGroup {
  std::string name;  // for messages
  std::vector<std::string> parameters;
  double lr = 0;  // used as it is, whatever the scheduler says; Engine::SetGroup changes it
  double weight_decay = 0;
};

struct OptimizerSettings {
  OptimizerType type = OptimizerType::kAdam;
  double lr = 1e-3;
  double weight_decay = 0;
  // Adam and AdamW
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
  bool adam_w_mode = true;  // Decoupled weight decay; false adds it to the gradient (L2).
  // SGD
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

struct WarmupLr {
  double min_lr = 0;
  std::optional<double> max_lr =
      std::nullopt;  // absent: the optimizer's lr (in a file: 1e-3 for WarmupDecayLR)
  std::int64_t warmup_steps = 1000;
  bool logarithmic = true;
};
struct WarmupDecayLr {
  WarmupLr warmup;
  std::int64_t total_steps = 0;  // required in the file
};
struct WarmupCosineLr {
  std::int64_t total_steps = 0;  // required in the file
  double warmup_min_ratio = 0;
  std::int64_t warmup_steps = 1000;
  double cos_min_ratio = 1e-4;
  bool logarithmic = true;
};
struct OneCycleLr {
  double min_lr = 0;  // required in the file
  double max_lr = 0;  // required in the file
  double decay_lr_rate = 0;
  std::int64_t first_steps = 2000;
  std::optional<std::int64_t> second_steps = std::nullopt;
  std::int64_t first_stairs = 0;
  std::optional<std::int64_t> second_stairs = std::nullopt;
  std::int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double min_momentum = 0.8;
  double max_momentum = 0.9;
  double decay_momentum_rate = 0;
};
struct RangeTestLr {
  double min_lr = 1e-3;
  std::int64_t step_size = 2000;
  double step_rate = 1.0;
  bool staircase = false;
};
using SchedulerSettings =
    std::variant<std::monostate, WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycleLr, RangeTestLr>;

enum class CudaGraphs : std::uint8_t { kAuto, kOn, kOff };

// What stands under the key "ullage": what DeepSpeed has no word for.
struct UllageSettings {
  // Bytes that this process may hold on its device, all of them: weights, state, activations,
  // buffers, what torch keeps in its cache and the CUDA context (and, since the driver does not say
  // whose they are, the bytes of other processes on that device). Where the file has no offload
  // section, what does not fit goes to the host: optimizer state first, from the end of the model,
  // then, on one rank, the weights. An offload section is obeyed as it is, and the budget checked.
  // On a CPU, where the host's memory stands for the device's, it covers the engine's buffers.
  // Absent: no limit, and everything on the device that no offload section moves.
  std::optional<std::int64_t> device_memory = std::nullopt;
  std::optional<std::int64_t> host_memory =
      std::nullopt;  // bytes this process may hold in host memory
  // "disk": {"path": ..., "limit": ...}. The folder of what is moved to disk, where the offload
  // section names none; and the bytes that a rank may have there at most.
  std::optional<std::string> disk_path = std::nullopt;
  std::optional<std::int64_t> disk_limit = std::nullopt;
  // Parameters are gathered in units of consecutive parameters of about this many bytes. Unless it
  // is given, small models use less: a sixteenth of their weights, but at least 1 MiB. Smaller
  // units need less memory for gathered parameters, larger ones fewer and longer copies.
  std::int64_t unit_size = 32 << 20;
  // On CUDA: whether micro-steps are recorded and launched as a whole (Engine::ForwardBackward),
  // which small models need to keep a GPU busy. Automatic: where it is possible, and nothing is
  // said where it is not but a line.
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  std::int64_t timeout_seconds = 300;  // after which a rank that does not answer is given up
  // Regular expressions: parameters without weight decay. Absent: the model family's own list
  // (biases and norms for BERT and Llama), which the start-up lines print.
  std::optional<std::vector<std::string>> no_decay = std::nullopt;
  std::vector<ParameterGroupSettings> parameter_groups;
};

// What one step of the optimizer covers: train_batch_size = micro_batch * accumulation * ranks.
struct BatchSizes {
  std::int64_t train_batch = 0;  // samples in one optimizer step, over all ranks
  std::int64_t micro_batch = 0;  // samples in one forward on one rank
  std::int64_t accumulation_steps = 0;
};

// One setting as it will be used, for the start-up lines.
struct EffectiveSetting {
  std::string key;  // dotted path
  std::string value;
  std::string source;  // "file", "default", "derived", "command line", "model family"
};

struct ULLAGE_API Settings {
  std::optional<std::int64_t> train_batch_size = std::nullopt;
  std::optional<std::int64_t> train_micro_batch_size_per_gpu = std::nullopt;
  std::optional<std::int64_t> gradient_accumulation_steps = std::nullopt;
  std::int64_t steps_per_print = 10;
  double gradient_clipping = 1.0;  // global L2 norm; 0 turns clipping off
  Precision precision = Precision::kFloat32;
  LossScaleSettings loss_scale;
  ZeroSettings zero;
  OptimizerSettings optimizer;
  SchedulerSettings scheduler;
  std::vector<std::string> ignored_parameters;  // regular expressions: stay whole and resident
  // Each block of the model keeps its input alone and runs again in backward: about a third more
  // computation, far less memory for activations, the same bits. A section
  // "activation_checkpointing" in the file turns it on, and so does "ullage": {"recompute":
  // "block"}. It speaks of the models that the command line builds; the engine leaves a module of
  // your own as it is.
  bool recompute = false;
  bool dataloader_drop_last = false;
  // "checkpoint": {"load_universal": ...}. Going on from a checkpoint of DeepSpeed: true reads its
  // universal form, where a folder has both, and refuses one that has none. Needed for nothing
  // else: every form is read on any number of ranks.
  bool load_universal = false;
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  UllageSettings ullage;

  // Keys that were accepted and change nothing here: "key: no effect, because ...".
  std::vector<std::string> no_effect;
  // Keys whose value came from the file, dotted, under their first names.
  std::vector<std::string> given;
  // Who set a key after the file was read ("command line", "model family"), by dotted path; wins
  // over `given` in Effective().
  std::map<std::string, std::string> set_by;

  // Both throw ConfigError with the key, the value and what is allowed, or UnsupportedError for a
  // feature that is recognised but not offered; FromFile throws IoError for a file that cannot be
  // read. Comments are allowed in the JSON.
  static Settings FromFile(const std::string& path);
  // `origin` names the text in messages.
  static Settings FromText(std::string_view json, const std::string& origin = "settings");

  // Any two of the three batch keys give the third. Throws ConfigError with the product when
  // they do not fit together, or when neither of the first two is given.
  BatchSizes ResolveBatchSizes(int world_size) const;

  // Every setting with its value and source, in a fixed order.
  std::vector<EffectiveSetting> Effective() const;
};

}  // namespace ullage
