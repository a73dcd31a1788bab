#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

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
constexpr std::int64_t kWorkspace = 32 * kMiB;
constexpr std::int64_t kBiasWorkspace = kMiB;

// Of the H200, fitted to 54 jobs that were timed there on the same day and a host of 16 cores
// (benchmarks/results/step_time.md).
MachineRates RatesOfH200() {
  MachineRates rates;
  rates.product16 = 844e12;
  rates.product32 = 47.2e12;
  rates.flash = {345e12, 195e12};
  rates.efficient16 = {82e12, 72e12};
  rates.efficient32 = {32e12, 27e12};
  rates.memory = 2.27e12;
  rates.cache = 3.28e12;
  rates.update = 2.66e12;
  rates.copies = 54e9;
  rates.peers = 300e9;
  rates.host_update = 152e9;
  rates.host_sums = 120e9;
  rates.host_norm = 230e9;
  rates.disk = 2e9;
  rates.kernel = 3e-6;
  rates.call = 13.3e-6;
  return rates;
}

// Of data sheets, dense: 10^12 operations in 16 bit on tensor cores and in fp32, 10^9 bytes of
// memory, and whether the host is connected by PCIe 5 (else 4).
struct DataSheet {
  double tensor, fp32, memory;
  bool is_pcie5 = false;
};

// What another device does of the H200's in the measure of its data sheet.
MachineRates RatesOf(const DataSheet& sheet) {
  const MachineRates h200 = RatesOfH200();
  constexpr DataSheet kH200 = {989, 67, 4800, true};
  MachineRates rates = h200;
  rates.product16 *= sheet.tensor / kH200.tensor;
  rates.product32 *= sheet.fp32 / kH200.fp32;
  // These kernels were written for the generation before Hopper's and use more of it.
  const double of_attention = std::min(1.0, 1.7 * sheet.tensor / kH200.tensor);
  for (MachineRates::Attention* attention : {&rates.flash, &rates.efficient16}) {
    attention->forward *= of_attention;
    attention->gradient *= of_attention;
  }
  rates.efficient32.forward *= sheet.fp32 / kH200.fp32;
  rates.efficient32.gradient *= sheet.fp32 / kH200.fp32;
  for (double* rate : {&rates.memory, &rates.cache, &rates.update}) {
    *rate *= sheet.memory / kH200.memory;
  }
  if (!sheet.is_pcie5) rates.copies /= 2;
  rates.peers = rates.copies;
  return rates;
}

// A card's name says more than a process gets: 40 GB cards have 39.4 to 39.6 GiB.
DeviceModel Device(std::string name, std::int64_t memory_mib, int multiprocessors,
                   const MachineRates& rates, bool is_measured = false) {
  return {std::move(name), memory_mib * kMiB, multiprocessors, kOutside,
          kWorkspace,      kBiasWorkspace,    rates,           is_measured};
}

}  // namespace

std::int64_t OutsideBytes(const DeviceModel& device, std::int64_t host) {
  constexpr std::int64_t kTableGrain = 2 * kMiB;
  const std::int64_t tables = host / 512;
  if (tables < kTableGrain / 2) return device.outside;
  return device.outside + (tables + kTableGrain - 1) / kTableGrain * kTableGrain;
}

const std::vector<DeviceModel>& KnownDevices() {
  static const std::vector<DeviceModel> devices = {
      Device("a10-24g", 22'500, 72, RatesOf({125, 31.2, 600})),
      Device("a100-40g", 40'345, 108, RatesOf({312, 19.5, 1555})),
      Device("a100-80g", 81'050, 108, RatesOf({312, 19.5, 2039})),
      Device("h100-80g", 81'050, 132, RatesOf({989, 67, 3350, true})),
      Device("h200", 143'000, 132, RatesOfH200(), true),
      Device("l4-24g", 22'500, 58, RatesOf({121, 30.3, 300})),
      Device("l40s-48g", 45'400, 142, RatesOf({362, 91.6, 864})),
      Device("rtx3090-24g", 24'120, 82, RatesOf({71, 35.6, 936})),
      Device("rtx4090-24g", 24'080, 128, RatesOf({165, 82.6, 1008})),
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

DeviceModel ModelOfDevice(const std::string& name, std::int64_t memory, int multiprocessors) {
  const auto letters = [](const std::string& text) {
    std::string kept;
    for (const char c : text) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
        kept += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
    }
    return kept;
  };
  const std::string wanted = letters(name);
  const DeviceModel* nearest = nullptr;
  for (const DeviceModel& device : KnownDevices()) {
    const std::string chip = letters(device.name.substr(0, device.name.find('-')));
    if (wanted.find(chip) == std::string::npos) continue;
    // "l40s" and "l4", "a100" and "a10".
    const auto distance = [&](const DeviceModel& d) { return std::abs(d.memory - memory); };
    if (nearest == nullptr || distance(device) < distance(*nearest)) nearest = &device;
  }
  DeviceModel model = nearest != nullptr ? *nearest : FindDevice("h200");
  if (nearest == nullptr || multiprocessors != model.multiprocessors) model.is_measured = false;
  model.name = name;
  model.memory = memory;
  model.multiprocessors = multiprocessors;
  return model;
}

}  // namespace ullage
