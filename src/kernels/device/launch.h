// What every launch needs: the size of its grid and the check that CUDA took it. Internal to the
// room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include "kernels/add_norm.h"
#include "kernels/device.h"
#include "kernels/update_part.h"

namespace ullage::kernels::device {

inline constexpr int kThreads = 256;  // of a block

// Blocks for `threads` threads, but no more than the current device can run at once: kernels take
// further work in strides of the grid.
unsigned Blocks(int64_t threads);

// Throws StateError naming `kernel` unless `status` is success.
void Check(cudaError_t status, const char* kernel);

// Throws StateError naming `kernel` unless each part has one of `steps` steps.
void CheckSteps(const char* kernel, std::size_t steps, std::span<const UpdatePart> parts);

// Throw StateError naming `kernel` unless it takes matrices of this width; so many arrays at once.
void CheckWidth(const char* kernel, bool is_taken, const Matrix& shape);
void CheckCount(const char* kernel, std::size_t count, std::size_t most);

inline cudaStream_t CudaStream(Stream stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace ullage::kernels::device
