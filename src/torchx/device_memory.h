// What a device holds, and how much of it torch's allocator may take.
//
// Without CUDA in the build everything is 0 and nothing is limited.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ullage::torchx {

struct DeviceMemory {
  std::int64_t total = 0;  // of the device
  std::int64_t free = 0;   // that no process holds
  // Of torch's allocator: what tensors and buffers hold, now and at most, and what it has from the
  // device for them, now and at most.
  std::int64_t allocated = 0;
  std::int64_t allocated_peak = 0;
  std::int64_t reserved = 0;
  std::int64_t reserved_peak = 0;

  // What lies outside torch's allocator: the CUDA context with its kernels, libraries' own memory.
  // The driver does not say whose it is, so that other processes' bytes are among them.
  std::int64_t outside() const { return total - free - reserved; }
};

// Of the current CUDA device; waits for nothing.
DeviceMemory ReadDeviceMemory();

// Lets torch's allocator have at most `bytes` of the current device: it gives its cache back before
// it would take more, and refuses what does not fit then. 0 or less: all of the device.
void LimitDeviceMemory(std::int64_t bytes);

// Gives back what torch's allocator keeps and nobody holds, and begins the peaks anew.
void RenewDevicePeaks();

// Lets torch's allocator grow its segments in place, so that batches of many lengths leave no holes
// behind, and in its smallest steps (12 MiB): a block between free ones keeps the steps in which it
// begins and ends. To be called before the first allocation. Nothing where PYTORCH_ALLOC_CONF or
// PYTORCH_CUDA_ALLOC_CONF says what the user wants.
void PreferGrowingSegments();

// "2.00 GiB" of the message with which torch's allocator refuses; empty when it names no size.
std::string RefusedBytes(std::string_view message);

}  // namespace ullage::torchx
