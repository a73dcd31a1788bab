#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ullage/error.h"
#include "ullage/planner.h"

namespace ullage {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Outside torch's allocator: measured on an H200 with torch 2.11.0+cu130 and the driver of its
// machine, 2026-12-01 (benchmarks/results/prediction.md): context and modules after the first
// steps. Other devices are taken to need the same, which is not measured. cuBLAS's workspace is the
// one that the engine sets for repeatable products, 8 pieces of 4 MiB.
constexpr std::int64_t kOutside = 757 * kMiB;
constexpr std::int64_t kOutsideOfCopies = 12 * kMiB;
constexpr std::int64_t kWorkspace = 32 * kMiB;
constexpr std::int64_t kBiasWorkspace = kMiB;

// A card's name says more than a process gets: 40 GB cards have 39.4 to 39.6 GiB.
DeviceModel Device(std::string name, std::int64_t memory_mib, int multiprocessors,
                   bool is_measured = false) {
  return {std::move(name),  memory_mib * kMiB, multiprocessors, kOutside,
          kOutsideOfCopies, kWorkspace,        kBiasWorkspace,  is_measured};
}

}  // namespace

const std::vector<DeviceModel>& KnownDevices() {
  static const std::vector<DeviceModel> devices = {
      Device("a10-24g", 22'500, 72),      Device("a100-40g", 40'345, 108),
      Device("a100-80g", 81'050, 108),    Device("h100-80g", 81'050, 132),
      Device("h200", 143'000, 132, true), Device("l4-24g", 22'500, 58),
      Device("l40s-48g", 45'400, 142),    Device("rtx3090-24g", 24'120, 82),
      Device("rtx4090-24g", 24'080, 128),
  };
  return devices;
}

const DeviceModel& FindDevice(const std::string& name) {
  const std::vector<DeviceModel>& devices = KnownDevices();
  const auto found = std::ranges::find(devices, name, &DeviceModel::name);
  if (found != devices.end()) return *found;
  std::vector<std::string> names;
  for (const DeviceModel& device : devices) names.push_back(device.name);
  throw ConfigError(fmt::format("no device '{}' is known", name),
                    fmt::format("known are {}", fmt::join(names, ", ")));
}

}  // namespace ullage
