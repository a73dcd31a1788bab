// What every launch needs: the size of its grid and the check that CUDA took it. Internal to the
// room.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "kernels/device.h"

namespace ullage::kernels::device {

inline constexpr int kThreads = 256;  // of a block

// Blocks for `threads` threads, but no more than the current device can run at once: kernels take
// further work in strides of the grid.
unsigned Blocks(int64_t threads);

// Throws StateError naming `kernel` unless `status` is success.
void Check(cudaError_t status, const char* kernel);

inline cudaStream_t CudaStream(Stream stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace ullage::kernels::device
