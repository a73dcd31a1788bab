// Settings::FromFile and FromText: from JSON to the structs, and what keys say together.
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "config/check_value.h"
#include "config/flat_settings.h"
#include "config/json_reader.h"
#include "config/read_training.h"
#include "config/read_zero.h"
#include "config/types.h"
#include "ullage/error.h"
#include "ullage/settings.h"

namespace ullage {
namespace config {
namespace {

using nlohmann::json;

std::string_view DTypeName(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kBFloat16:
      return "bf16";
    case Precision::kFloat16:
      return "fp16";
  }
  return "?";
}

template <typename T>
void ReadOptional(const FlatSettings& file, const std::string& path, std::optional<T>& field) {
  if (const FlatValue* found = file.Find(path)) field = found->value.get<T>();
}

// DeepSpeed refuses it in place of gradient_clipping too, and people still carry it along.
void RefuseMaxGradNorm(const json& root) {
  const json::json_pointer place("/optimizer/params/max_grad_norm");
  if (!root.contains(place)) return;
  throw ConfigError(
      "optimizer.params.max_grad_norm: not a parameter of the optimizer; the limit is "
      "gradient_clipping, at the top level",
      fmt::format("write \"gradient_clipping\": {} instead", Show(root[place])));
}

void ReadBatches(const FlatSettings& file, Settings& settings) {
  ReadOptional(file, "train_batch_size", settings.train_batch_size);
  ReadOptional(file, "train_micro_batch_size_per_gpu", settings.train_micro_batch_size_per_gpu);
  ReadOptional(file, "gradient_accumulation_steps", settings.gradient_accumulation_steps);
  file.Read("steps_per_print", settings.steps_per_print);
  file.Read("gradient_clipping", settings.gradient_clipping);
  file.Read("ignored_parameters", settings.ignored_parameters);
  file.Read("dataloader_drop_last", settings.dataloader_drop_last);
  file.Read("checkpoint.load_universal", settings.load_universal);
  file.Read("wall_clock_breakdown", settings.wall_clock_breakdown);
  file.Read("memory_breakdown", settings.memory_breakdown);
}

void ReadLossScale(const FlatSettings& file, LossScaleSettings& scale) {
  file.Read("fp16.loss_scale", scale.loss_scale);
  file.Read("fp16.initial_scale_power", scale.initial_scale_power);
  file.Read("fp16.loss_scale_window", scale.loss_scale_window);
  file.Read("fp16.hysteresis", scale.hysteresis);
  file.Read("fp16.consecutive_hysteresis", scale.consecutive_hysteresis);
  file.Read("fp16.min_loss_scale", scale.min_loss_scale);
  if (scale.loss_scale == 0 && scale.min_loss_scale > std::ldexp(1.0, scale.initial_scale_power)) {
    throw ConfigError(
        fmt::format("fp16.min_loss_scale: {} is above the first scale, 2 to the power {} "
                    "(fp16.initial_scale_power)",
                    scale.min_loss_scale, scale.initial_scale_power),
        "raise initial_scale_power or lower min_loss_scale");
  }
}

Precision ReadPrecision(const FlatSettings& file) {
  bool fp16 = false;
  bool bf16 = false;
  file.Read("fp16.enabled", fp16);
  file.Read("bf16.enabled", bf16);
  if (fp16 && bf16) {
    throw ConfigError("fp16.enabled and bf16.enabled: both true; allowed: one of them",
                      "bf16 needs no loss scale; take it where the device has it");
  }
  return fp16 ? Precision::kFloat16 : bf16 ? Precision::kBFloat16 : Precision::kFloat32;
}

// Gradients cross in the model's dtype and are summed in fp32: that is what fp32 is asked for.
// A narrower dtype would round them.
void CheckCommunicationType(FlatSettings& file, Precision precision) {
  const std::string key = "communication_data_type";
  const FlatValue* found = file.Find(key);
  if (found == nullptr || found->value == DTypeName(precision)) return;
  if (found->value == "fp32") {
    file.AddNoEffect(key, fmt::format("{} gradients lose nothing on their way in {}, and are "
                                      "summed in fp32",
                                      DTypeName(precision), DTypeName(precision)));
    return;
  }
  throw UnsupportedError(
      fmt::format("{}: {} is recognised but not offered: {} gradients are exchanged without "
                  "rounding them further",
                  key, Show(found->value), DTypeName(precision)),
      fmt::format("remove the key, or set it to \"{}\"", DTypeName(precision)));
}

void CheckDataTypes(FlatSettings& file, Precision precision) {
  if (const FlatValue* found = file.Find("data_types.grad_accum_dtype")) {
    if (CanonicalDType(found->value.get_ref<const std::string&>()) != "fp32") {
      throw UnsupportedError(
          fmt::format("{}: {} is recognised but not offered: gradients are accumulated in fp32",
                      found->written, Show(found->value)),
          "remove the key, or set it to \"fp32\"");
    }
  }
  if (const FlatValue* found = file.Find("data_types.param_dtype")) {
    if (CanonicalDType(found->value.get_ref<const std::string&>()) != DTypeName(precision)) {
      throw ConfigError(fmt::format("{}: {} contradicts the enabled precision; allowed: \"{}\"",
                                    found->written, Show(found->value), DTypeName(precision)),
                        "the sections fp16 and bf16 choose the precision");
    }
  }
}

void ReadGroups(const FlatSettings& file, std::vector<ParameterGroupSettings>& groups) {
  const FlatValue* found = file.Find("ullage.parameter_groups");
  if (found == nullptr) return;
  for (std::size_t i = 0; i < found->value.size(); ++i) {
    const json& entry = found->value[i];
    const std::string name = fmt::format("{}[{}]", found->written, i);
    if (!entry.contains("pattern")) {
      throw ConfigError(fmt::format("{}.pattern: missing", name),
                        "a group is the parameters whose names match its pattern");
    }
    ParameterGroupSettings group;
    group.pattern = entry["pattern"].get<std::string>();
    for (const auto& [key, field] :
         {std::pair("lr_factor", &group.lr_factor), std::pair("lr", &group.lr),
          std::pair("weight_decay", &group.weight_decay)}) {
      if (entry.contains(key)) *field = entry[key].get<double>();
    }
    if (group.lr && group.lr_factor) {
      throw ConfigError(fmt::format("{0}.lr and {0}.lr_factor: allowed: one of them", name),
                        "lr replaces the base learning rate, lr_factor multiplies it");
    }
    groups.push_back(std::move(group));
  }
}

void ReadUllage(const FlatSettings& file, UllageSettings& ullage) {
  ReadOptional(file, "ullage.device_memory", ullage.device_memory);
  file.Read("ullage.unit_size", ullage.unit_size);
  if (const FlatValue* word = file.Find("ullage.cuda_graphs")) {
    ullage.cuda_graphs = word->value == "on"    ? CudaGraphs::kOn
                         : word->value == "off" ? CudaGraphs::kOff
                                                : CudaGraphs::kAuto;
  }
  file.Read("ullage.timeout_seconds", ullage.timeout_seconds);
  ReadOptional(file, "ullage.no_decay", ullage.no_decay);
  ReadGroups(file, ullage.parameter_groups);
  ReadOptional(file, "ullage.disk.path", ullage.disk_path);
  ReadOptional(file, "ullage.disk.limit", ullage.disk_limit);
}

bool ReadRecompute(FlatSettings& file) {
  const std::string section = "activation_checkpointing";
  const std::string key = "ullage.recompute";
  if (file.Has(section)) {
    const FlatValue* word = file.Find(key);
    if (word != nullptr && word->value == "none") {
      throw ConfigError(
          fmt::format("{} and {}: the section turns recompute on, \"none\" turns it off", section,
                      key),
          "remove one of them");
    }
    if (word == nullptr) file.Restate(section, key, "block");
  }
  return file.Has(key) && file.Find(key)->value == "block";
}

Settings ReadSettings(const json& root) {
  RefuseMaxGradNorm(root);
  const Types types = ReadTypes(root);
  FlatSettings file(root, ScopesOf(types));
  Settings settings;
  ReadBatches(file, settings);
  settings.precision = ReadPrecision(file);
  ReadLossScale(file, settings.loss_scale);
  CheckCommunicationType(file, settings.precision);
  CheckDataTypes(file, settings.precision);
  settings.zero = ReadZero(file);
  settings.recompute = ReadRecompute(file);
  settings.optimizer = ReadOptimizer(file, types);
  settings.scheduler = ReadScheduler(file, types);
  ReadUllage(file, settings.ullage);
  settings.no_effect = file.no_effect();
  settings.given = file.Given();
  return settings;
}

// The whole file, or one byte more than settings may have.
std::string ReadBounded(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char block[1 << 16];
  while (file && text.size() <= kLargestSettingsBytes) {
    file.read(block, sizeof block);
    text.append(block, static_cast<std::size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof())) {
    throw IoError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)),
                  "check the path of the settings file");
  }
  return text;
}

}  // namespace
}  // namespace config

Settings Settings::FromText(std::string_view text, const std::string& origin) {
  return config::ReadSettings(config::ReadJson(text, origin));
}

Settings Settings::FromFile(const std::string& path) {
  return FromText(config::ReadBounded(path), path);
}

}  // namespace ullage
