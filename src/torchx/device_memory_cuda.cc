// device_memory.h in a build with CUDA.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "torchx/device_memory.h"
#include "ullage/error.h"

namespace ullage::torchx {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void ReadDevice(DeviceMemory& memory) {
  std::size_t free = 0, total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total); error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw StateError(
        fmt::format("asking for the device's memory: CUDA says: {}", cudaGetErrorString(error)),
        "an earlier kernel may have failed: CUDA_LAUNCH_BLOCKING=1 tells which");
  }
  memory.free = static_cast<std::int64_t>(free);
  memory.total = static_cast<std::int64_t>(total);
}

}  // namespace

DeviceMemory ReadDeviceMemory() {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  DeviceMemory memory;
  ReadDevice(memory);
  const auto stats = allocator::getDeviceStats(c10::cuda::current_device());
  memory.allocated = stats.allocated_bytes[kAll].current;
  memory.allocated_peak = stats.allocated_bytes[kAll].peak;
  memory.reserved = stats.reserved_bytes[kAll].current;
  memory.reserved_peak = stats.reserved_bytes[kAll].peak;
  return memory;
}

void LimitDeviceMemory(std::int64_t bytes) {
  DeviceMemory memory;
  ReadDevice(memory);
  const double share =
      bytes <= 0 ? 1 : static_cast<double>(bytes) / static_cast<double>(memory.total);
  allocator::setMemoryFraction(std::min(share, 1.0), c10::cuda::current_device());
}

void RenewDevicePeaks() {
  allocator::emptyCache();
  allocator::resetPeakStats(c10::cuda::current_device());
}

void PreferGrowingSegments() {
  for (const char* variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (std::getenv(variable) != nullptr) return;
  }
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True,large_segment_size_mb:12");
}

}  // namespace ullage::torchx
