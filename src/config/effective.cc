// Settings::Effective and its printed form.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/bytes.h"
#include "config/print_effective.h"
#include "ullage/settings.h"

namespace ullage {
namespace {

// Collects rows; each knows where its value came from.
class Rows {
 public:
  explicit Rows(const Settings& settings) : settings_(settings) {}

  template <typename T>
  void Add(const std::string& key, const T& value, const std::string& otherwise = "default") {
    rows_.push_back({key, fmt::format("{}", value), Source(key, otherwise)});
  }

  // What is not given follows from `meaning`.
  template <typename T>
  void AddOptional(const std::string& key, const std::optional<T>& value,
                   const std::string& meaning, const std::string& otherwise = "derived") {
    if (value) {
      Add(key, *value);
    } else {
      Add(key, meaning, otherwise);
    }
  }

  std::vector<EffectiveSetting> Take() { return std::move(rows_); }

 private:
  std::string Source(const std::string& key, const std::string& otherwise) const {
    if (const auto set = settings_.set_by.find(key); set != settings_.set_by.end()) {
      return set->second;
    }
    const auto& given = settings_.given;
    return std::find(given.begin(), given.end(), key) != given.end() ? "file" : otherwise;
  }

  const Settings& settings_;
  std::vector<EffectiveSetting> rows_;
};

std::string Elements(std::int64_t count) {
  return fmt::format("{} elements", count);
}

std::string Names(const std::vector<std::string>& patterns) {
  return fmt::format("[{}]", fmt::join(patterns, ", "));
}

void AddBatches(const Settings& settings, Rows& rows) {
  rows.AddOptional("train_batch_size", settings.train_batch_size,
                   "micro batch * accumulation steps * ranks");
  const bool both = settings.train_batch_size && settings.train_micro_batch_size_per_gpu;
  rows.AddOptional("train_micro_batch_size_per_gpu", settings.train_micro_batch_size_per_gpu,
                   "train batch / accumulation steps / ranks");
  if (both) {
    rows.AddOptional("gradient_accumulation_steps", settings.gradient_accumulation_steps,
                     "train batch / micro batch / ranks");
  } else {
    rows.Add("gradient_accumulation_steps", settings.gradient_accumulation_steps.value_or(1));
  }
}

void AddPrecision(const Settings& settings, Rows& rows) {
  const bool fp16 = settings.precision == Precision::kFloat16;
  rows.Add("fp16.enabled", fp16);
  rows.Add("bf16.enabled", settings.precision == Precision::kBFloat16);
  if (!fp16) return;
  const LossScaleSettings& scale = settings.loss_scale;
  if (scale.loss_scale != 0) {
    rows.Add("fp16.loss_scale", scale.loss_scale);
    return;
  }
  rows.Add("fp16.loss_scale", "0 (dynamic)");
  rows.Add("fp16.initial_scale_power", scale.initial_scale_power);
  rows.Add("fp16.loss_scale_window", fmt::format("{} steps", scale.loss_scale_window));
  rows.Add("fp16.hysteresis", scale.hysteresis);
  rows.Add("fp16.consecutive_hysteresis", scale.consecutive_hysteresis);
  rows.Add("fp16.min_loss_scale", scale.min_loss_scale);
}

std::string_view Name(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kNone:
      return "none";
    case OffloadDevice::kCpu:
      return "cpu";
    case OffloadDevice::kNvme:
      return "nvme";
  }
  return "?";
}

void AddOffload(const ZeroSettings& zero, Rows& rows) {
  const std::string optimizer = "zero_optimization.offload_optimizer.";
  rows.Add(optimizer + "device", Name(zero.offload_optimizer.device));
  if (zero.offload_optimizer.device != OffloadDevice::kNone) {
    rows.Add(optimizer + "pin_memory", zero.offload_optimizer.pin_memory);
    rows.Add(optimizer + "ratio", zero.offload_optimizer.ratio);
  }
  if (!zero.offload_optimizer.nvme_path.empty()) {
    rows.Add(optimizer + "nvme_path", zero.offload_optimizer.nvme_path);
  }
  const std::string param = "zero_optimization.offload_param.";
  rows.Add(param + "device", Name(zero.offload_param.device));
  if (zero.offload_param.device != OffloadDevice::kNone) {
    rows.Add(param + "pin_memory", zero.offload_param.pin_memory);
  }
}

void AddZero(const ZeroSettings& zero, Rows& rows) {
  const std::string section = "zero_optimization.";
  rows.Add(section + "stage", zero.stage);
  rows.Add(section + "reduce_bucket_size", Elements(zero.reduce_bucket_size));
  AddOffload(zero, rows);
  if (zero.stage != 3) return;
  rows.Add(section + "stage3_prefetch_bucket_size", Elements(zero.prefetch_bucket_size));
  rows.Add(section + "stage3_param_persistence_threshold",
           Elements(zero.param_persistence_threshold));
}

void AddOptimizer(const OptimizerSettings& optimizer, Rows& rows) {
  const std::string params = "optimizer.params.";
  const bool adam = optimizer.type == OptimizerType::kAdam;
  rows.Add("optimizer.type", adam ? (optimizer.adam_w_mode ? "AdamW" : "Adam") : "SGD");
  rows.Add(params + "lr", optimizer.lr);
  if (adam) {
    rows.Add(params + "betas", fmt::format("[{}, {}]", optimizer.beta1, optimizer.beta2));
    rows.Add(params + "eps", optimizer.eps);
  }
  rows.Add(params + "weight_decay", optimizer.weight_decay);
  if (adam) {
    rows.Add(params + "bias_correction", optimizer.bias_correction);
    rows.Add(params + "adam_w_mode", optimizer.adam_w_mode);
    return;
  }
  rows.Add(params + "momentum", optimizer.momentum);
  rows.Add(params + "dampening", optimizer.dampening);
  rows.Add(params + "nesterov", optimizer.nesterov);
}

// One overload for each type of scheduler.
class SchedulerRows {
 public:
  SchedulerRows(double base_lr, Rows& rows) : base_lr_(base_lr), rows_(rows) {}

  void operator()(std::monostate) { rows_.Add("scheduler.type", "none"); }
  void operator()(const WarmupLr& warmup) {
    rows_.Add("scheduler.type", "WarmupLR");
    AddWarmup(warmup);
  }
  void operator()(const WarmupDecayLr& decay) {
    rows_.Add("scheduler.type", "WarmupDecayLR");
    Add("total_num_steps", decay.total_steps);
    AddWarmup(decay.warmup);
  }
  void operator()(const WarmupCosineLr& cosine) {
    rows_.Add("scheduler.type", "WarmupCosineLR");
    Add("total_num_steps", cosine.total_steps);
    Add("warmup_min_ratio", cosine.warmup_min_ratio);
    Add("warmup_num_steps", cosine.warmup_steps);
    Add("warmup_type", cosine.logarithmic ? "log" : "linear");
    Add("cos_min_ratio", cosine.cos_min_ratio);
  }
  void operator()(const OneCycleLr& cycle) {
    rows_.Add("scheduler.type", "OneCycle");
    Add("cycle_min_lr", cycle.min_lr);
    Add("cycle_max_lr", cycle.max_lr);
    Add("decay_lr_rate", cycle.decay_lr_rate);
    Add("cycle_first_step_size", cycle.first_steps);
    Add("cycle_second_step_size", cycle.second_steps.value_or(cycle.first_steps));
    Add("cycle_first_stair_count", cycle.first_stairs);
    Add("cycle_second_stair_count", cycle.second_stairs.value_or(cycle.first_stairs));
    Add("decay_step_size", cycle.decay_step_size);
    Add("cycle_momentum", cycle.cycle_momentum);
    if (!cycle.cycle_momentum) return;
    Add("cycle_min_mom", cycle.min_momentum);
    Add("cycle_max_mom", cycle.max_momentum);
    Add("decay_mom_rate", cycle.decay_momentum_rate);
  }
  void operator()(const RangeTestLr& range) {
    rows_.Add("scheduler.type", "LRRangeTest");
    Add("lr_range_test_min_lr", range.min_lr);
    Add("lr_range_test_step_size", range.step_size);
    Add("lr_range_test_step_rate", range.step_rate);
    Add("lr_range_test_staircase", range.staircase);
  }

 private:
  template <typename T>
  void Add(const char* key, const T& value) {
    rows_.Add(fmt::format("scheduler.params.{}", key), value);
  }

  void AddWarmup(const WarmupLr& warmup) {
    Add("warmup_min_lr", warmup.min_lr);
    if (warmup.max_lr) {
      Add("warmup_max_lr", *warmup.max_lr);
    } else {
      rows_.Add("scheduler.params.warmup_max_lr", base_lr_, "derived");
    }
    Add("warmup_num_steps", warmup.warmup_steps);
    Add("warmup_type", warmup.logarithmic ? "log" : "linear");
  }

  double base_lr_;
  Rows& rows_;
};

std::string Describe(const ParameterGroupSettings& group) {
  std::string text = group.pattern;
  if (group.lr) text += fmt::format(" lr {}", *group.lr);
  if (group.lr_factor) text += fmt::format(" lr_factor {}", *group.lr_factor);
  if (group.weight_decay) text += fmt::format(" weight_decay {}", *group.weight_decay);
  return text;
}

void AddUllage(const UllageSettings& ullage, Rows& rows) {
  rows.Add("ullage.device_memory",
           ullage.device_memory ? FormatBytes(*ullage.device_memory) : "no budget");
  if (ullage.disk_path) rows.Add("ullage.disk.path", *ullage.disk_path);
  if (ullage.disk_limit) rows.Add("ullage.disk.limit", FormatBytes(*ullage.disk_limit));
  rows.Add("ullage.unit_size", FormatBytes(ullage.unit_size));
  rows.Add("ullage.cuda_graphs", ullage.cuda_graphs == CudaGraphs::kOn    ? "on"
                                 : ullage.cuda_graphs == CudaGraphs::kOff ? "off"
                                                                          : "auto");
  rows.Add("ullage.timeout_seconds", fmt::format("{} s", ullage.timeout_seconds));
  rows.Add("ullage.reduce", "exact");
  rows.Add("ullage.no_decay",
           ullage.no_decay ? Names(*ullage.no_decay) : "the model family's own list");
  std::vector<std::string> groups;
  for (const ParameterGroupSettings& group : ullage.parameter_groups) {
    groups.push_back(Describe(group));
  }
  rows.Add("ullage.parameter_groups", fmt::format("[{}]", fmt::join(groups, "; ")));
}

}  // namespace

std::vector<EffectiveSetting> Settings::Effective() const {
  Rows rows(*this);
  AddBatches(*this, rows);
  rows.Add("gradient_clipping",
           gradient_clipping == 0 ? "0 (off)" : fmt::format("{}", gradient_clipping));
  AddPrecision(*this, rows);
  AddZero(zero, rows);
  AddOptimizer(optimizer, rows);
  std::visit(SchedulerRows(optimizer.lr, rows), scheduler);
  rows.Add("ignored_parameters", Names(ignored_parameters));
  rows.Add("dataloader_drop_last", dataloader_drop_last);
  rows.Add("checkpoint.load_universal", load_universal);
  rows.Add("steps_per_print", steps_per_print);
  rows.Add("wall_clock_breakdown", wall_clock_breakdown);
  rows.Add("memory_breakdown", memory_breakdown);
  rows.Add("ullage.recompute", recompute ? "block" : "none");
  AddUllage(ullage, rows);
  return rows.Take();
}

namespace config {

std::string PrintEffective(const Settings& settings) {
  const std::vector<EffectiveSetting> rows = settings.Effective();
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const EffectiveSetting& row : rows) {
    key_width = std::max(key_width, row.key.size());
    // A long value pushes only its own source aside.
    if (row.value.size() <= 40) value_width = std::max(value_width, row.value.size());
  }
  std::string text;
  for (const EffectiveSetting& row : rows) {
    text +=
        fmt::format("{:<{}}  {:<{}}  {}\n", row.key, key_width, row.value, value_width, row.source);
  }
  for (const std::string& line : settings.no_effect) text += line + "\n";
  return text;
}

}  // namespace config
}  // namespace ullage
