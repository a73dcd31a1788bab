#include "config/read_training.h"

#include <fmt/format.h>

#include "base/log.h"
#include "config/json_reader.h"
#include "ullage/error.h"

namespace ullage::config {
namespace {

const std::string kOptimizer = "optimizer.params.";
const std::string kScheduler = "scheduler.params.";

template <typename T>
void ReadOptional(const FlatSettings& file, const std::string& path, std::optional<T>& field) {
  T value{};
  if (!file.Has(path)) return;
  file.Read(path, value);
  field = value;
}

template <typename T>
void ReadRequired(const FlatSettings& file, const std::string& key, const std::string& type,
                  T& field) {
  if (!file.Has(kScheduler + key)) {
    throw ConfigError(fmt::format("{}{}: missing", kScheduler, key),
                      fmt::format("{} needs it", type));
  }
  file.Read(kScheduler + key, field);
}

void ReadAdam(FlatSettings& file, const Types& types, OptimizerSettings& optimizer) {
  optimizer.type = OptimizerType::kAdam;
  if (const FlatValue* betas = file.Find(kOptimizer + "betas")) {
    optimizer.beta1 = betas->value[0].get<double>();
    optimizer.beta2 = betas->value[1].get<double>();
  }
  file.Read(kOptimizer + "eps", optimizer.eps);
  file.Read(kOptimizer + "bias_correction", optimizer.bias_correction);
  file.Read(kOptimizer + "adam_w_mode", optimizer.adam_w_mode);
  if (types.optimizer == "AdamW" && !optimizer.adam_w_mode) {
    optimizer.adam_w_mode = true;
    file.Overrule(kOptimizer + "adam_w_mode",
                  "AdamW always decouples weight decay; the type Adam with false does not");
  }
}

void ReadSgd(FlatSettings& file, OptimizerSettings& optimizer) {
  optimizer.type = OptimizerType::kSgd;
  file.Read(kOptimizer + "momentum", optimizer.momentum);
  file.Read(kOptimizer + "dampening", optimizer.dampening);
  file.Read(kOptimizer + "nesterov", optimizer.nesterov);
  if (optimizer.nesterov && (optimizer.momentum <= 0 || optimizer.dampening != 0)) {
    throw ConfigError(
        fmt::format("{}nesterov: true with momentum {} and dampening {}; allowed: with a momentum "
                    "above 0 and dampening 0",
                    kOptimizer, optimizer.momentum, optimizer.dampening));
  }
}

WarmupLr ReadWarmup(const FlatSettings& file) {
  WarmupLr warmup;
  file.Read(kScheduler + "warmup_min_lr", warmup.min_lr);
  ReadOptional(file, kScheduler + "warmup_max_lr", warmup.max_lr);
  file.Read(kScheduler + "warmup_num_steps", warmup.warmup_steps);
  std::string type = "log";
  file.Read(kScheduler + "warmup_type", type);
  warmup.logarithmic = type == "log";
  return warmup;
}

void CompareTotal(std::int64_t total_steps, std::int64_t warmup_steps) {
  if (total_steps >= warmup_steps) return;
  LogWarn("config", fmt::format("{0}total_num_steps {1} is less than {0}warmup_num_steps {2}: the "
                                "run ends while the learning rate still rises",
                                kScheduler, total_steps, warmup_steps));
}

WarmupDecayLr ReadWarmupDecay(FlatSettings& file) {
  WarmupDecayLr decay;
  decay.warmup = ReadWarmup(file);
  // DeepSpeed's default for this type alone; null asks for the optimizer's rate here too.
  if (!file.Mentions(kScheduler + "warmup_max_lr")) decay.warmup.max_lr = 1e-3;
  ReadRequired(file, "total_num_steps", "WarmupDecayLR", decay.total_steps);
  CompareTotal(decay.total_steps, decay.warmup.warmup_steps);
  return decay;
}

WarmupCosineLr ReadWarmupCosine(FlatSettings& file) {
  WarmupCosineLr cosine;
  ReadRequired(file, "total_num_steps", "WarmupCosineLR", cosine.total_steps);
  const WarmupLr warmup = ReadWarmup(file);
  cosine.warmup_steps = warmup.warmup_steps;
  cosine.logarithmic = warmup.logarithmic;
  file.Read(kScheduler + "warmup_min_ratio", cosine.warmup_min_ratio);
  file.Read(kScheduler + "cos_min_ratio", cosine.cos_min_ratio);
  CompareTotal(cosine.total_steps, cosine.warmup_steps);
  return cosine;
}

OneCycleLr ReadOneCycle(FlatSettings& file, const Types& types) {
  OneCycleLr cycle;
  ReadRequired(file, "cycle_min_lr", "OneCycle", cycle.min_lr);
  ReadRequired(file, "cycle_max_lr", "OneCycle", cycle.max_lr);
  file.Read(kScheduler + "decay_lr_rate", cycle.decay_lr_rate);
  file.Read(kScheduler + "cycle_first_step_size", cycle.first_steps);
  ReadOptional(file, kScheduler + "cycle_second_step_size", cycle.second_steps);
  file.Read(kScheduler + "cycle_first_stair_count", cycle.first_stairs);
  ReadOptional(file, kScheduler + "cycle_second_stair_count", cycle.second_stairs);
  file.Read(kScheduler + "decay_step_size", cycle.decay_step_size);
  file.Read(kScheduler + "cycle_momentum", cycle.cycle_momentum);
  file.Read(kScheduler + "cycle_min_mom", cycle.min_momentum);
  file.Read(kScheduler + "cycle_max_mom", cycle.max_momentum);
  file.Read(kScheduler + "decay_mom_rate", cycle.decay_momentum_rate);
  if (types.optimizer == "SGD" && cycle.cycle_momentum) {
    cycle.cycle_momentum = false;
    file.Overrule(kScheduler + "cycle_momentum",
                  "only Adam's beta1 is cycled; SGD keeps its momentum, as in DeepSpeed");
  }
  return cycle;
}

RangeTestLr ReadRangeTest(const FlatSettings& file) {
  RangeTestLr range;
  file.Read(kScheduler + "lr_range_test_min_lr", range.min_lr);
  file.Read(kScheduler + "lr_range_test_step_size", range.step_size);
  file.Read(kScheduler + "lr_range_test_step_rate", range.step_rate);
  file.Read(kScheduler + "lr_range_test_staircase", range.staircase);
  return range;
}

}  // namespace

OptimizerSettings ReadOptimizer(FlatSettings& file, const Types& types) {
  OptimizerSettings optimizer;
  file.Read(kOptimizer + "lr", optimizer.lr);
  file.Read(kOptimizer + "weight_decay", optimizer.weight_decay);
  if (types.optimizer == "SGD") {
    ReadSgd(file, optimizer);
  } else {
    ReadAdam(file, types, optimizer);
  }
  return optimizer;
}

SchedulerSettings ReadScheduler(FlatSettings& file, const Types& types) {
  if (types.scheduler == "WarmupLR") return ReadWarmup(file);
  if (types.scheduler == "WarmupDecayLR") return ReadWarmupDecay(file);
  if (types.scheduler == "WarmupCosineLR") return ReadWarmupCosine(file);
  if (types.scheduler == "OneCycle") return ReadOneCycle(file, types);
  if (types.scheduler == "LRRangeTest") return ReadRangeTest(file);
  return std::monostate{};
}

}  // namespace ullage::config
