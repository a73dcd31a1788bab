// Sums within a row and over the rows of a matrix, in the orders of layers_reference.cc. Internal
// to the room.
#pragma once

#include <cstdint>

#include "kernels/add_norm.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/launch.h"

namespace ullage::kernels::device {

inline constexpr int kWarpLanes = 32;
inline constexpr int kRowWarps = kThreads / kWarpLanes;  // of a block
static_assert(kRowWarps == 8, "the reference adds up eight");

template <DType kType>
inline constexpr int kRowVector = 16 / ElementBytes(kType);  // elements of a lane in a piece

// Note [Order of a row's sum]
__device__ inline float WarpSum(float sum) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffff, sum, distance));
  }
  return sum;
}

template <DType kType>
__device__ inline float Rounded(float value) {
  return ToFloat<kType>(FromFloat<kType>(value));
}

// Adds up what each warp of the block has for kColumns columns, in the order of the warps, and
// stores the first `columns`. column(i): that of sums[i] of the calling lane. All threads of the
// block call it.
template <int kColumns, int kPerLane, class Column>
__device__ inline void StoreBlockSums(const float (&sums)[kPerLane], Column column,
                                      float (&shared)[kRowWarps][kColumns], int64_t columns,
                                      float* out) {
  const int warp = threadIdx.x / kWarpLanes;
  __syncthreads();  // what was there before has been read
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) shared[warp][column(i)] = sums[i];
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    float total = shared[0][c];
#pragma unroll
    for (int w = 1; w < kRowWarps; ++w) total = __fadd_rn(total, shared[w][c]);
    out[c] = total;
  }
}

}  // namespace ullage::kernels::device
