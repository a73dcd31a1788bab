#include "kernels/column_sums.h"

#include "kernels/device/each_element.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/device_layers.h"

namespace ullage::kernels::device {
namespace {

constexpr std::size_t kSums = 8;
constexpr std::size_t kMatrices = 4;

// The first step: a block takes the columns of one warp's read and every PartialRows-th group of
// eight rows. Body(row, column) gives the calling lane's values.
template <DType kType, class Body>
__device__ inline void PartialColumns(const Body& body, int64_t rows, int64_t width,
                                      float* partials) {
  constexpr int kVector = kRowVector<kType>;
  constexpr int kColumns = kWarpLanes * kVector;
  const int lane_column = static_cast<int>(threadIdx.x) % kWarpLanes * kVector;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kRowWarps;
  float sums[kVector] = {};
  if (first + lane_column < width) {
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kRowWarps + threadIdx.x / kWarpLanes;
         row < rows; row += stride) {
      const Floats<kVector> values = body(row * width + first + lane_column);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sums[j] = __fadd_rn(sums[j], values.at[j]);
    }
  }
  __shared__ float shared[kRowWarps][kColumns];
  const int64_t rest = width - first;
  StoreBlockSums(
      sums, [lane_column](int i) { return lane_column + i; }, shared,
      rest < kColumns ? rest : kColumns, partials + blockIdx.y * width + first);
}

struct Matrices {
  const void* at[kMatrices];
};

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    SumColumns(const __grid_constant__ Matrices matrices, int64_t rows, int64_t width,
               float* partials) {
  const void* const x = matrices.at[blockIdx.z];
  PartialColumns<kType>([x](int64_t i) { return LoadFloats<kType, kRowVector<kType>>(x, i); }, rows,
                        width, partials + blockIdx.z * static_cast<int64_t>(gridDim.y) * width);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    GeluGradientColumns(const GeluGradientArrays arrays, int64_t rows, int64_t width) {
  constexpr int kVector = kRowVector<kType>;
  PartialColumns<kType>(
      [&arrays](int64_t i) {
        constexpr float kSqrtHalf = 0.707106781F;
        constexpr float kPdfFactor = 0.398942280F;  // 1 / sqrt(2 pi)
        const auto x = LoadFloats<kType, kVector>(arrays.x, i);
        auto gradient = LoadFloats<kType, kVector>(arrays.out_gradient, i);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float at = x.at[j];
          const float cdf = __fmul_rn(0.5F, __fadd_rn(1.0F, erff(__fmul_rn(at, kSqrtHalf))));
          const float pdf = __fmul_rn(kPdfFactor, expf(__fmul_rn(__fmul_rn(-0.5F, at), at)));
          gradient.at[j] = Rounded<kType>(__fmul_rn(gradient.at[j], __fmaf_rn(at, pdf, cdf)));
        }
        StoreFloats<kType, kVector>(gradient, arrays.x_gradient, i);
        return gradient;
      },
      rows, width, arrays.partials);
}

struct Sums {
  ColumnSum at[kSums];
};

// A block takes 32 columns; its warps each add up every eighth row.
__global__ void __launch_bounds__(kThreads) FinishSums(const __grid_constant__ Sums sums) {
  __shared__ float shared[kRowWarps][kWarpLanes];
  const ColumnSum& sum = sums.at[blockIdx.y];
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = threadIdx.x / kWarpLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpLanes + lane;
  float part = 0;
  if (column < sum.width) {
    for (int64_t row = warp; row < sum.count; row += kRowWarps) {
      part = __fadd_rn(part, sum.partials[row * sum.stride + column]);
    }
  }
  shared[warp][lane] = part;
  __syncthreads();
  if (warp != 0 || column >= sum.width) return;
  float total = shared[0][lane];
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) total = __fadd_rn(total, shared[w][lane]);
  switch (sum.dtype) {
    case DType::kFloat32:
      static_cast<float*>(sum.out)[column] = total;
      break;
    case DType::kBFloat16:
      static_cast<uint16_t*>(sum.out)[column] = FromFloat<DType::kBFloat16>(total);
      break;
    case DType::kFloat16:
      static_cast<uint16_t*>(sum.out)[column] = FromFloat<DType::kFloat16>(total);
      break;
  }
}

template <DType kType>
dim3 ColumnBlocks(const Matrix& shape, std::size_t matrices) {
  constexpr int64_t kColumns = kWarpLanes * kRowVector<kType>;
  return {static_cast<unsigned>((shape.width + kColumns - 1) / kColumns),
          static_cast<unsigned>(PartialRows(shape.rows)), static_cast<unsigned>(matrices)};
}

bool IsWholeVectors(const Matrix& shape) {
  return shape.width > 0 && shape.width * ElementBytes(shape.dtype) % 16 == 0;
}

}  // namespace

void FinishColumnSums(std::span<const ColumnSum> sums, Stream stream) {
  if (sums.empty()) return;
  CheckCount("FinishColumnSums", sums.size(), kSums);
  Sums arguments{};
  int64_t widest = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    arguments.at[i] = sums[i];
    if (sums[i].width > widest) widest = sums[i].width;
  }
  const dim3 blocks(static_cast<unsigned>((widest + kWarpLanes - 1) / kWarpLanes),
                    static_cast<unsigned>(sums.size()));
  if (widest == 0) return;
  FinishSums<<<blocks, kThreads, 0, CudaStream(stream)>>>(arguments);
  Check(cudaGetLastError(), "FinishColumnSums");
}

void PartialColumnSums(const Matrix& shape, std::span<const void* const> matrices, float* partials,
                       Stream stream) {
  if (shape.rows <= 0 || matrices.empty()) return;
  CheckWidth("PartialColumnSums", IsWholeVectors(shape), shape);
  CheckCount("PartialColumnSums", matrices.size(), kMatrices);
  Matrices arguments{};
  for (std::size_t i = 0; i < matrices.size(); ++i) arguments.at[i] = matrices[i];
  WithDType(shape.dtype, [&](auto type) {
    SumColumns<type()>
        <<<ColumnBlocks<type()>(shape, matrices.size()), kThreads, 0, CudaStream(stream)>>>(
            arguments, shape.rows, shape.width, partials);
  });
  Check(cudaGetLastError(), "PartialColumnSums");
}

void GeluGradient(const Matrix& shape, const GeluGradientArrays& arrays, Stream stream) {
  if (shape.rows <= 0) return;
  CheckWidth("GeluGradient", IsWholeVectors(shape), shape);
  WithDType(shape.dtype, [&](auto type) {
    GeluGradientColumns<type()>
        <<<ColumnBlocks<type()>(shape, 1), kThreads, 0, CudaStream(stream)>>>(arrays, shape.rows,
                                                                              shape.width);
  });
  Check(cudaGetLastError(), "GeluGradient");
}

}  // namespace ullage::kernels::device
