#include "config/read_zero.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::config {
namespace {

const std::string kSection = "zero_optimization.";
constexpr std::string_view kNothingOnDisk = "nothing is moved to disk";

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
OffloadSettings ReadOffload(FlatSettings& file, const std::string& section, int stage,
                            int first_stage) {
  OffloadSettings offload;
  const FlatValue* device = file.Find(section + ".device");
  if (device == nullptr || device->value == "none") return offload;
  const bool to_disk = device->value == "nvme";
  const bool is_optimizer = first_stage == 1;
  if (to_disk && !is_optimizer) {
    throw UnsupportedError(
        fmt::format("{}: \"nvme\" is recognised but not offered yet: weights are not moved to disk",
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
  offload.device = to_disk ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  file.Read(section + ".pin_memory", offload.pin_memory);
  file.Read(section + ".ratio", offload.ratio);
  if (!is_optimizer) return offload;
  const FlatValue* path = file.Find(section + ".nvme_path");
  if (to_disk) {
    if (path == nullptr && !file.Has("ullage.disk.path")) {
      throw ConfigError(fmt::format("{}: \"nvme\" needs a folder, and {}.nvme_path names none",
                                    device->written, section),
                        "name an existing folder on a fast local disk there");
    }
    file.Read(section + ".nvme_path", offload.nvme_path);
  } else if (path != nullptr) {
    file.AddNoEffect(path->written, kNothingOnDisk);
  }
  return offload;
}

// The folder and the limit of ullage.disk, where they change nothing.
void NoteIdleDiskKeys(FlatSettings& file, const OffloadSettings& offload) {
  const bool to_disk = offload.device == OffloadDevice::kNvme;
  for (const char* key : {"ullage.disk.path", "ullage.disk.limit"}) {
    const FlatValue* found = file.Find(key);
    if (found != nullptr && !to_disk) file.AddNoEffect(found->written, kNothingOnDisk);
  }
  const FlatValue* path = file.Find("ullage.disk.path");
  if (path != nullptr && to_disk && !offload.nvme_path.empty()) {
    file.AddNoEffect(path->written, kSection + "offload_optimizer.nvme_path names the folder");
  }
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
  NoteIdleDiskKeys(file, zero.offload_optimizer);
  return zero;
}

}  // namespace ullage::config
