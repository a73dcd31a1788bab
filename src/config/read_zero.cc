#include "config/read_zero.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::config {
namespace {

const std::string kSection = "zero_optimization.";

// The forms that the section had before its present one.
void RestateOldForms(FlatSettings& file) {
  if (const FlatValue* zero = file.Find("zero_optimization"); zero && zero->value.is_boolean()) {
    file.Restate("zero_optimization", kSection + "stage", zero->value.get<bool>() ? 1 : 0);
  }
  for (const auto& [old_name, name] : {std::pair("cpu_offload", "offload_optimizer"),
                                       std::pair("cpu_offload_param", "offload_param")}) {
    const FlatValue* old = file.Find(kSection + old_name);
    if (old == nullptr) continue;
    if (file.Has(kSection + name)) {
      throw ConfigError(
          fmt::format("{0}{1} and {0}{2}: two names of one setting", kSection, old_name, name),
          fmt::format("keep {}{}", kSection, name));
    }
    file.Restate(kSection + old_name, fmt::format("{}{}.device", kSection, name),
                 old->value.get<bool>() ? "cpu" : "none");
  }
}

// `first_stage` is the lowest at which there is anything to move.
OffloadSettings ReadOffload(const FlatSettings& file, const std::string& section, int stage,
                            int first_stage) {
  OffloadSettings offload;
  const FlatValue* device = file.Find(section + ".device");
  if (device == nullptr || device->value == "none") return offload;
  if (device->value == "nvme") {
    throw UnsupportedError(
        fmt::format("{}: \"nvme\" is recognised but not offered yet: nothing is moved to disk",
                    device->written),
        "set it to \"cpu\" or \"none\"");
  }
  if (stage < first_stage) {
    const bool last = first_stage == 3;
    throw ConfigError(
        fmt::format("{} and {}stage: offloading at stage {}; allowed: at {}", device->written,
                    kSection, stage, last ? "stage 3" : "stages 1 to 3"),
        fmt::format("set {}stage to {}, which works on one rank too, or remove {}", kSection,
                    last ? "3" : "1, 2 or 3", device->written));
  }
  offload.device = OffloadDevice::kCpu;
  file.Read(section + ".pin_memory", offload.pin_memory);
  file.Read(section + ".ratio", offload.ratio);
  return offload;
}

}  // namespace

ZeroSettings ReadZero(FlatSettings& file) {
  RestateOldForms(file);
  ZeroSettings zero;
  file.Read(kSection + "stage", zero.stage);
  file.Read(kSection + "reduce_bucket_size", zero.reduce_bucket_size);
  file.Read(kSection + "stage3_prefetch_bucket_size", zero.prefetch_bucket_size);
  file.Read(kSection + "stage3_param_persistence_threshold", zero.param_persistence_threshold);
  for (const char* key : {"stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"}) {
    const FlatValue* found = file.Find(kSection + key);
    if (found == nullptr || zero.stage == 3) continue;
    file.AddNoEffect(found->written, fmt::format("stage {} does not split parameters", zero.stage));
  }
  zero.offload_optimizer = ReadOffload(file, kSection + "offload_optimizer", zero.stage, 1);
  zero.offload_param = ReadOffload(file, kSection + "offload_param", zero.stage, 3);
  return zero;
}

}  // namespace ullage::config
