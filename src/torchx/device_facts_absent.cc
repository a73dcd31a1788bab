// device_facts.h in a build without CUDA.
#include "torchx/device_facts.h"

#include "torchx/device.h"
#include "ullage/error.h"

namespace ullage::torchx {

std::vector<DeviceFacts> DescribeCudaDevices() {
  return {};
}

DeviceFacts DescribeCurrentCuda() {
  throw UnsupportedError(WhyNoCuda(), "run on the CPU, or use a build with CUDA");
}

int BuiltWithCuda() {
  return 0;
}

std::vector<int> BuiltCapabilities() {
  return {};
}

}  // namespace ullage::torchx
