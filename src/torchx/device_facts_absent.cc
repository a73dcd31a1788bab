// device_facts.h in a build without CUDA.
#include "torchx/device_facts.h"

namespace ullage::torchx {

std::vector<DeviceFacts> DescribeCudaDevices() {
  return {};
}

int BuiltWithCuda() {
  return 0;
}

std::vector<int> BuiltCapabilities() {
  return {};
}

}  // namespace ullage::torchx
