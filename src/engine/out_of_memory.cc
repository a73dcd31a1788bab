#include "engine/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "torchx/device_memory.h"
#include "ullage/error.h"

namespace ullage {
namespace {

// The tags that hold most of the device, most first.
std::string LargestTags(const memory::TagBytes& held) {
  std::vector<std::size_t> order(held.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return held[a] > held[b]; });
  std::string text;
  for (std::size_t i = 0; i < 4 && held[order[i]] > 0; ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", plan::kTagNames[order[i]],
                        FormatBytes(held[order[i]]));
  }
  return text.empty() ? "nothing" : text;
}

std::string Remedy(const Engine::Core& core) {
  std::string remedy =
      "a smaller train_micro_batch_size_per_gpu, shorter records or ullage.recompute \"block\" "
      "lower what operators hold";
  const plan::TagBytes held = core.plan.BytesOfRank(core.ranks->rank(), plan::Tier::kDevice);
  const auto state = held[static_cast<std::size_t>(plan::Tag::kMaster)] +
                     held[static_cast<std::size_t>(plan::Tag::kMoments)] +
                     held[static_cast<std::size_t>(plan::Tag::kGradients)];
  if (core.plan.device_budget > 0) {
    remedy +=
        "; a larger EngineOptions::operator_bytes, or ullage.device_memory, leaves more of "
        "the device to them";
  } else {
    if (state > 0) {
      remedy += fmt::format("; zero_optimization.offload_optimizer moves {} to the host",
                            FormatBytes(state));
    }
    const auto resident = std::ranges::count_if(
        core.plan.units, [](const plan::UnitPlan& unit) { return unit.resident; });
    if (resident > 1) remedy += "; zero_optimization.offload_param moves weights there";
    remedy += "; ullage.device_memory lets a budget decide what lies where";
  }
  return remedy;
}

}  // namespace

void ThrowDeviceOutOfMemory(Engine::Core& core, const std::string& phase,
                            const std::string& message) {
  const memory::TagBytes held = core.memory.ledger().now(memory::Tier::kDevice);
  const std::int64_t engine = std::accumulate(held.begin(), held.end(), std::int64_t{0});
  std::string requested = torchx::RefusedBytes(message);
  if (requested.empty()) requested = "memory";
  std::string device;
  if (core.memory.is_cuda()) {
    const torchx::DeviceMemory now = torchx::ReadDeviceMemory();
    const std::int64_t budget = core.plan.device_budget;
    const std::int64_t all = budget > 0 ? std::min(budget, now.total) : now.total;
    device = fmt::format(
        "; of {}{} {} are available: torch's allocator has given out {} and keeps {} more, and {} "
        "lie outside it",
        FormatBytes(all), budget > 0 ? " (ullage.device_memory)" : "",
        FormatBytes(std::max<std::int64_t>(0, all - now.reserved - now.outside())),
        FormatBytes(now.allocated), FormatBytes(now.reserved - now.allocated),
        FormatBytes(now.outside()));
  }
  throw OutOfMemoryError(
      fmt::format("out of device memory in the {}: an operator was refused {}; the engine holds {} "
                  "there, most of it for {}{}",
                  phase, requested, FormatBytes(engine), LargestTags(held), device),
      Remedy(core));
}

}  // namespace ullage
