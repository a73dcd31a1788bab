// What CUDA devices there are, and what this build can do with them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ullage::torchx {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t total = 0, free = 0;  // bytes
  std::vector<int> reaches;          // other devices whose memory it can map
  // Bytes per second between page-locked host memory and the device; 0 where it was not measured.
  double to_device = 0, from_device = 0;
};

// Empty where none can be used (WhyNoCuda). Takes a few hundred MB of the host and of each device
// for a moment.
std::vector<DeviceFacts> DescribeCudaDevices();

// The same of the current one, with nothing measured and no word of others. Throws UnsupportedError
// where there is none.
DeviceFacts DescribeCurrentCuda();

// The CUDA that this program was built with, as 1000 * major + 10 * minor; 0: none.
int BuiltWithCuda();
// Compute capabilities that its kernels were compiled for, as 10 * major + minor.
std::vector<int> BuiltCapabilities();

}  // namespace ullage::torchx
