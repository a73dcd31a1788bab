#include "memory/device_arena.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "layout/unit.h"
#include "torchx/device.h"
#include "ullage/error.h"

namespace ullage::memory {
namespace {

constexpr std::int64_t kGrain = 512;

}  // namespace

DeviceArena::DeviceArena(std::int64_t bytes) : size_(layout::RoundUp(bytes, kGrain)) {
  if (size_ == 0) return;
  data_ = static_cast<std::byte*>(torchx::AllocateDevice(size_));
  if (data_ == nullptr) {
    throw OutOfMemoryError(
        fmt::format("out of device memory: {} for weights, gradients and optimizer state were "
                    "refused",
                    FormatBytes(size_)),
        "offload with zero_optimization.offload_optimizer and offload_param, or use more ranks "
        "with "
        "a higher zero_optimization.stage");
  }
  torchx::Queue::OfOperators(torchx::CurrentCuda()).Zero(data_, size_);
}

DeviceArena::~DeviceArena() {
  torchx::FreeDevice(data_);
}

std::byte* DeviceArena::Allocate(std::int64_t bytes) {
  const std::int64_t rounded = layout::RoundUp(bytes, kGrain);
  if (rounded > size_ - used_) return nullptr;
  return data_ + std::exchange(used_, used_ + rounded);
}

}  // namespace ullage::memory
