// One piece of device memory for all that a plan has there: torch's allocator rounds large requests
// up to whole MiB, which for hundreds of buffers is a GiB that a budget does not have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ullage::memory {

class DeviceArena {
 public:
  // Zero-filled, on the current device. Throws OutOfMemoryError.
  explicit DeviceArena(std::int64_t bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Aligned to 512 bytes, given out once and never taken back. Null when there is no room left.
  std::byte* Allocate(std::int64_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t used_ = 0;
};

}  // namespace ullage::memory
