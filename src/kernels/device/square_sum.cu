#include "kernels/device/each_element.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/device/word_window.cuh"

namespace ullage::kernels::device {
namespace {

// Note [Sums of squares on the device]
// The order within a group of 64 is that of group_sums.h: lane j of 8 adds the squares of elements
// j, j + 8, ..., in order. Eight elements are a row. A thread must meet all rows of its lanes in
// order, but the reads of a warp from memory must be contiguous, so a warp passes tiles of 4 KB
// through shared memory: chunks of 16 bytes go in as they come and out by columns. With 16-bit
// elements a chunk is a row and each thread sums a whole group; with fp32 a chunk is half of a row
// and two neighbouring threads sum four lanes each.

constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRows = 8;                    // of a group
constexpr int kChunks = kRows * kWarpSize;  // of a tile
constexpr unsigned kAllLanes = 0xffffffff;

template <DType kType>
constexpr int kChunkElements = 16 / ElementBytes(kType);
template <DType kType>
constexpr int kTileElements = kChunks* kChunkElements<kType>;

template <DType kType>
using Chunk = Elements<kType, kChunkElements<kType>>;

// Where a chunk of the tile stands in shared memory. Eight threads at a time access it; reading by
// columns they are a group, that is 8 or 16 chunks, apart: without the exchange all would hit the
// same banks.
template <DType kType>
__device__ inline int Place(int chunk) {
  const int line = chunk / 8;
  return chunk ^ (kType == DType::kFloat32 ? line & 6 : line & 7);
}

// Elements index to index + kChunkElements - 1 of x; those beyond n are zeros.
template <DType kType, bool kAligned>
__device__ inline Chunk<kType> LoadChunk(const void* x, int64_t index, int64_t n) {
  if (kAligned && index + kChunkElements<kType> <= n) {
    return LoadElements<kType, kChunkElements<kType>>(x, index);
  }
  Chunk<kType> chunk{};
#pragma unroll
  for (int i = 0; i < kChunkElements<kType>; ++i) {
    if (index + i < n) chunk.at[i] = LoadElements<kType, 1>(x, index + i).at[0];
  }
  return chunk;
}

// The group sum of the calling thread; with fp32 two neighbours work on one and both receive it.
template <DType kType>
__device__ inline double GroupSum(const Chunk<kType>* tile, int lane) {
  constexpr int kLanes = kChunkElements<kType>;
  double sum[kLanes] = {};
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int chunk =
        kType == DType::kFloat32 ? lane / 2 * 16 + row * 2 + lane % 2 : lane * kRows + row;
    const Chunk<kType> elements = tile[Place<kType>(chunk)];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const double value = ToFloat<kType>(elements.at[i]);
      sum[i] = __fma_rn(value, value, sum[i]);
    }
  }
  if constexpr (kType == DType::kFloat32) {
    // The even thread has lanes 0 to 3 and adds 0+4 and 2+6, its neighbour has 4 to 7 and adds 1+5
    // and 3+7.
    const bool odd = lane % 2 != 0;
    const double first = __shfl_xor_sync(kAllLanes, odd ? sum[0] : sum[1], 1);
    const double second = __shfl_xor_sync(kAllLanes, odd ? sum[2] : sum[3], 1);
    const double half = __dadd_rn(__dadd_rn(odd ? sum[1] : sum[0], first),
                                  __dadd_rn(odd ? sum[3] : sum[2], second));
    return __dadd_rn(half, __shfl_xor_sync(kAllLanes, half, 1));
  } else {
    return __dadd_rn(__dadd_rn(__dadd_rn(sum[0], sum[4]), __dadd_rn(sum[2], sum[6])),
                     __dadd_rn(__dadd_rn(sum[1], sum[5]), __dadd_rn(sum[3], sum[7])));
  }
}

// The smallest index of a non-finite element of the group that begins at `begin`.
template <DType kType>
__device__ int64_t FirstNonFinite(const void* x, int64_t begin, int64_t n) {
  constexpr uint32_t kInfinity = kType == DType::kFloat32    ? 0x7f800000
                                 : kType == DType::kBFloat16 ? 0x7f80
                                                             : 0x7c00;
  for (int64_t i = begin; i < n; ++i) {
    if ((LoadElements<kType, 1>(x, i).at[0] & kInfinity) == kInfinity) return i;
  }
  return SquareSumWords::kNone;
}

template <DType kType, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    SumSquares(const void* x, int64_t n, SquareSumWords* result) {
  __shared__ Chunk<kType> tiles[kWarps][kChunks];
  __shared__ Word words[ExactSum::kWords];
  for (int i = threadIdx.x; i < ExactSum::kWords; i += kThreads) words[i] = 0;
  __syncthreads();

  const int lane = threadIdx.x % kWarpSize;
  Chunk<kType>* const tile = tiles[threadIdx.x / kWarpSize];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * kTileElements<kType>;
  int64_t begin =
      (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize) * kTileElements<kType>;

  Chunk<kType> chunks[kRows];
  const auto load = [&] {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int chunk = k * kWarpSize + lane;
      chunks[k] = LoadChunk<kType, kAligned>(x, begin + chunk * kChunkElements<kType>, n);
    }
  };
  WordWindow window;
  int64_t first_non_finite = SquareSumWords::kNone;
  load();
  while (begin < n) {
    __syncwarp();  // all have read the tile before
#pragma unroll
    for (int k = 0; k < kRows; ++k) tile[Place<kType>(k * kWarpSize + lane)] = chunks[k];
    __syncwarp();
    const int64_t group = begin + (kType == DType::kFloat32 ? lane / 2 : lane) * int64_t{kRows * 8};
    begin += stride;
    load();  // the next tile is on its way while this one is summed

    const double sum = GroupSum<kType>(tile, lane);
    if (kType == DType::kFloat32 && lane % 2 != 0) continue;
    if (isfinite(sum)) {
      window.Add(sum, words);
    } else if (first_non_finite == SquareSumWords::kNone) {  // groups come in ascending order
      first_non_finite = FirstNonFinite<kType>(x, group, n);
    }
  }
  __syncwarp();
  window.FlushWarp(words);
  if (first_non_finite != SquareSumWords::kNone) {
    atomicMin(reinterpret_cast<long long*>(&result->first_non_finite),
              static_cast<long long>(first_non_finite));
  }
  __syncthreads();

  // Each block adds less than 2^33 to a word, carries included. The squares of floats end at word
  // 42, so there is always a next one.
  for (int i = threadIdx.x; i < ExactSum::kWords - 1; i += kThreads) {
    Word* const to = reinterpret_cast<Word*>(result->words) + i;
    const Word low = words[i] & 0xffffffff;
    const Word high = words[i] >> 32;
    if (low != 0) atomicAdd(to, low);
    if (high != 0) atomicAdd(to + 1, high);
  }
}

__global__ void __launch_bounds__(kThreads) Clear(SquareSumWords* results, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  constexpr int64_t kValues = ExactSum::kWords + 1;
  for (int64_t i = index; i < count * kValues; i += threads) {
    SquareSumWords& result = results[i / kValues];
    if (i % kValues < ExactSum::kWords) {
      result.words[i % kValues] = 0;
    } else {
      result.first_non_finite = SquareSumWords::kNone;
    }
  }
}

}  // namespace

void ClearSquareSums(SquareSumWords* results, int64_t count, Stream stream) {
  if (count <= 0) return;
  Clear<<<Blocks(count * (ExactSum::kWords + 1)), kThreads, 0, CudaStream(stream)>>>(results,
                                                                                     count);
  Check(cudaGetLastError(), "ClearSquareSums");
}

void AddSumOfSquares(DType dtype, const void* x, int64_t n, SquareSumWords* result, Stream stream) {
  if (n <= 0) return;
  WithDType(dtype, [&](auto type) {
    const int64_t tiles = (n + kTileElements<type()> - 1) / kTileElements<type()>;
    const unsigned blocks = Blocks(tiles * kWarpSize);
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
      SumSquares<type(), true><<<blocks, kThreads, 0, CudaStream(stream)>>>(x, n, result);
    } else {
      SumSquares<type(), false><<<blocks, kThreads, 0, CudaStream(stream)>>>(x, n, result);
    }
    Check(cudaGetLastError(), "AddSumOfSquares");
  });
}

}  // namespace ullage::kernels::device
