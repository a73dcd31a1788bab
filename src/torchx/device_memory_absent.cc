// device_memory.h in a build without CUDA.
#include "torchx/device_memory.h"

namespace ullage::torchx {

DeviceMemory ReadDeviceMemory() {
  return {};
}
void LimitDeviceMemory(std::int64_t) {}
void RenewDevicePeaks() {}
void PreferGrowingSegments() {}

}  // namespace ullage::torchx
