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

void CheckSteps(const char* kernel, std::size_t steps, std::span<const UpdatePart> parts) {
  for (const UpdatePart& part : parts) {
    if (part.step >= 0 && static_cast<std::size_t>(part.step) < steps) continue;
    throw StateError(
        fmt::format("{} was given a part with step {} of {}", kernel, part.step, steps),
        "a part's step is an index into the steps given beside the parts");
  }
}

void CheckWidth(const char* kernel, bool is_taken, const Matrix& shape) {
  if (is_taken) return;
  throw StateError(
      fmt::format("{} was given rows of {} {} elements", kernel, shape.width, Name(shape.dtype)),
      "AddNorm takes one to four times 512 bytes, the others a multiple of 16 bytes");
}

void CheckCount(const char* kernel, std::size_t count, std::size_t most) {
  if (count <= most) return;
  throw StateError(fmt::format("{} was given {} arrays, it takes {}", kernel, count, most),
                   "call it several times");
}

}  // namespace ullage::kernels::device
