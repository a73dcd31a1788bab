#include "kernels/device/launch.h"

#include <algorithm>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::kernels::device {

unsigned Blocks(int64_t threads) {
  constexpr int64_t kBlocksPerMultiprocessor = 2048 / kThreads;
  int device = 0;
  int multiprocessors = 0;
  Check(cudaGetDevice(&device), "any kernel");
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "any kernel");
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::min(blocks, multiprocessors * kBlocksPerMultiprocessor));
}

void Check(cudaError_t status, const char* kernel) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the next launch is not to be blamed for it
  throw StateError(fmt::format("CUDA refused to launch {}: {} ({})", kernel,
                               cudaGetErrorString(status), cudaGetErrorName(status)),
                   "an earlier failure on this device is reported here too; CUDA_LAUNCH_BLOCKING=1 "
                   "makes each be reported where it happens, and compute-sanitizer names its line");
}

}  // namespace ullage::kernels::device
