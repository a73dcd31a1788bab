// device_facts.h in a build with CUDA.
#include <cuda_runtime_api.h>

#include <chrono>
#include <sstream>

#include "torchx/device.h"
#include "torchx/device_facts.h"

namespace ullage::torchx {
namespace {

constexpr std::size_t kCopied = std::size_t{256} << 20;

// Bytes per second of the fastest of three copies; 0 where one fails.
double RateOf(void* to, const void* from, cudaMemcpyKind kind) {
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (cudaMemcpy(to, from, kCopied, kind) != cudaSuccess) return 0;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kCopied) / seconds.count());
  }
  return best;
}

void MeasureCopies(DeviceFacts& facts) {
  void *host = nullptr, *device = nullptr;
  if (cudaMallocHost(&host, kCopied) == cudaSuccess &&
      cudaMalloc(&device, kCopied) == cudaSuccess) {
    facts.to_device = RateOf(device, host, cudaMemcpyHostToDevice);
    facts.from_device = RateOf(host, device, cudaMemcpyDeviceToHost);
  }
  cudaFree(device);
  cudaFreeHost(host);
  static_cast<void>(cudaGetLastError());
}

bool Describe(int device, DeviceFacts& facts) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return false;
  facts.name = properties.name;
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
    facts.free = static_cast<std::int64_t>(free);
    facts.total = static_cast<std::int64_t>(total);
  }
  return true;
}

}  // namespace

DeviceFacts DescribeCurrentCuda() {
  DeviceFacts facts;
  Describe(CurrentCuda().index(), facts);
  return facts;
}

std::vector<DeviceFacts> DescribeCudaDevices() {
  std::vector<DeviceFacts> devices;
  if (!WhyNoCuda().empty()) return devices;
  int before = 0;
  static_cast<void>(cudaGetDevice(&before));
  for (int d = 0; d < CudaDeviceCount(); ++d) {
    DeviceFacts facts;
    if (cudaSetDevice(d) != cudaSuccess || !Describe(d, facts)) continue;
    for (int other = 0; other < CudaDeviceCount(); ++other) {
      int reaches = 0;
      if (other != d && cudaDeviceCanAccessPeer(&reaches, d, other) == cudaSuccess &&
          reaches != 0) {
        facts.reaches.push_back(other);
      }
    }
    MeasureCopies(facts);
    devices.push_back(std::move(facts));
  }
  static_cast<void>(cudaSetDevice(before));
  static_cast<void>(cudaGetLastError());
  return devices;
}

int BuiltWithCuda() {
  return CUDART_VERSION;
}

std::vector<int> BuiltCapabilities() {
  std::istringstream text(ULLAGE_CUDA_ARCHITECTURES);
  std::vector<int> capabilities;
  for (int capability = 0; text >> capability;) capabilities.push_back(capability);
  return capabilities;
}

}  // namespace ullage::torchx
