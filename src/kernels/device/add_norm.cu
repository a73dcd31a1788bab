#include "kernels/add_norm.h"

#include "kernels/device/each_element.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/device_layers.h"
#include "kernels/dropout_hash.h"

namespace ullage::kernels::device {
namespace {

__device__ inline float Factor(const DropoutKey& dropout, int64_t index) {
  return DropoutFactor(dropout, static_cast<uint64_t>(index));
}

// A warp has a row of kPieces times 512 bytes in its registers.
template <DType kType, int kPieces>
struct Row {
  static constexpr int kVector = kRowVector<kType>;
  static constexpr int kWidth = kPieces * kWarpLanes * kVector;
  static constexpr int kPerLane = kPieces * kVector;

  // The first column of the calling lane in a piece.
  __device__ static int Column(int piece) {
    return (piece * kWarpLanes + static_cast<int>(threadIdx.x) % kWarpLanes) * kVector;
  }
};

template <DType kType, int kPieces>
__global__ void __launch_bounds__(kThreads)
    AddNormRows(int64_t rows, const AddNormArrays arrays, float epsilon, const DropoutKey dropout) {
  using Shape = Row<kType, kPieces>;
  constexpr int kVector = Shape::kVector;
  constexpr auto kWidth = static_cast<float>(Shape::kWidth);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarpLanes;
  if (row >= rows) return;
  Floats<kVector> sum[kPieces];
  float total = 0;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int64_t i = row * Shape::kWidth + Shape::Column(piece);
    sum[piece] = LoadFloats<kType, kVector>(arrays.in, i);
    const auto residual = LoadFloats<kType, kVector>(arrays.residual, i);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      float& at = sum[piece].at[j];
      at = Rounded<kType>(__fmul_rn(at, Factor(dropout, i + j)));
      at = Rounded<kType>(__fadd_rn(at, residual.at[j]));
      total = __fadd_rn(total, at);
    }
    StoreFloats<kType, kVector>(sum[piece], arrays.sum, i);
  }
  const float mean = __fdiv_rn(WarpSum(total), kWidth);
  float squares = 0;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float d = __fsub_rn(sum[piece].at[j], mean);
      squares = __fmaf_rn(d, d, squares);
    }
  }
  const float variance = __fdiv_rn(WarpSum(squares), kWidth);
  const float rstd = __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(variance, epsilon)));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int column = Shape::Column(piece);
    const auto gamma = LoadFloats<kType, kVector>(arrays.gamma, column);
    const auto beta = LoadFloats<kType, kVector>(arrays.beta, column);
    Floats<kVector> out;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float h = __fmul_rn(__fsub_rn(sum[piece].at[j], mean), rstd);
      out.at[j] = __fmaf_rn(h, gamma.at[j], beta.at[j]);
    }
    StoreFloats<kType, kVector>(out, arrays.out, row * Shape::kWidth + column);
  }
  if (threadIdx.x % kWarpLanes == 0) {
    arrays.mean[row] = mean;
    arrays.rstd[row] = rstd;
  }
}

template <DType kType, int kPieces>
__global__ void __launch_bounds__(kThreads)
    AddNormGradientRows(int64_t rows, const AddNormGradientArrays arrays,
                        const DropoutKey dropout) {
  using Shape = Row<kType, kPieces>;
  constexpr int kVector = Shape::kVector;
  constexpr auto kWidth = static_cast<float>(Shape::kWidth);
  float of_gamma[Shape::kPerLane] = {}, of_beta[Shape::kPerLane] = {},
        of_bias[Shape::kPerLane] = {};
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarpLanes;
       row < rows; row += stride) {
    const float mean = arrays.mean[row];
    const float rstd = arrays.rstd[row];
    Floats<kVector> g[kPieces], h[kPieces];
    float total_g = 0, total_gh = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = Shape::Column(piece);
      const auto out =
          LoadFloats<kType, kVector>(arrays.out_gradient, row * Shape::kWidth + column);
      const auto gamma = LoadFloats<kType, kVector>(arrays.gamma, column);
      h[piece] = LoadFloats<kType, kVector>(arrays.sum, row * Shape::kWidth + column);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int c = piece * kVector + j;
        h[piece].at[j] = __fmul_rn(__fsub_rn(h[piece].at[j], mean), rstd);
        g[piece].at[j] = __fmul_rn(out.at[j], gamma.at[j]);
        total_g = __fadd_rn(total_g, g[piece].at[j]);
        total_gh = __fmaf_rn(g[piece].at[j], h[piece].at[j], total_gh);
        of_gamma[c] = __fmaf_rn(out.at[j], h[piece].at[j], of_gamma[c]);
        of_beta[c] = __fadd_rn(of_beta[c], out.at[j]);
      }
    }
    const float mean_g = __fdiv_rn(WarpSum(total_g), kWidth);
    const float mean_gh = __fdiv_rn(WarpSum(total_gh), kWidth);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int64_t i = row * Shape::kWidth + Shape::Column(piece);
      Floats<kVector> residual, in;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float rest =
            __fsub_rn(__fsub_rn(g[piece].at[j], mean_g), __fmul_rn(h[piece].at[j], mean_gh));
        residual.at[j] = Rounded<kType>(__fmul_rn(rstd, rest));
        in.at[j] = Rounded<kType>(__fmul_rn(residual.at[j], Factor(dropout, i + j)));
        const int c = piece * kVector + j;
        of_bias[c] = __fadd_rn(of_bias[c], in.at[j]);
      }
      StoreFloats<kType, kVector>(residual, arrays.residual_gradient, i);
      StoreFloats<kType, kVector>(in, arrays.in_gradient, i);
    }
  }
  __shared__ float shared[kRowWarps][Shape::kWidth];
  const auto column = [](int i) { return Shape::Column(i / kVector) + i % kVector; };
  float* const out = arrays.partials + static_cast<int64_t>(blockIdx.x) * 3 * Shape::kWidth;
  StoreBlockSums(of_gamma, column, shared, Shape::kWidth, out);
  StoreBlockSums(of_beta, column, shared, Shape::kWidth, out + Shape::kWidth);
  StoreBlockSums(of_bias, column, shared, Shape::kWidth, out + 2 * Shape::kWidth);
}

// Calls f(dtype, pieces) with both as constants.
template <class F>
void WithShape(const char* kernel, const Matrix& shape, F f) {
  CheckWidth(kernel, AddNormTakes(shape.dtype, shape.width), shape);
  const int64_t pieces = shape.width * ElementBytes(shape.dtype) / 512;
  WithDType(shape.dtype, [&](auto type) {
    if (pieces == 1) f(type, std::integral_constant<int, 1>());
    if (pieces == 2) f(type, std::integral_constant<int, 2>());
    if (pieces == 3) f(type, std::integral_constant<int, 3>());
    if (pieces == 4) f(type, std::integral_constant<int, 4>());
  });
  Check(cudaGetLastError(), kernel);
}

}  // namespace

void AddNorm(const Matrix& shape, const AddNormArrays& arrays, double epsilon,
             const DropoutKey& dropout, Stream stream) {
  if (shape.rows <= 0) return;
  const auto blocks = static_cast<unsigned>((shape.rows + kRowWarps - 1) / kRowWarps);
  WithShape("AddNorm", shape, [&](auto type, auto pieces) {
    AddNormRows<type(), pieces()><<<blocks, kThreads, 0, CudaStream(stream)>>>(
        shape.rows, arrays, static_cast<float>(epsilon), dropout);
  });
}

void AddNormGradient(const Matrix& shape, const AddNormGradientArrays& arrays,
                     const DropoutKey& dropout, Stream stream) {
  if (shape.rows <= 0) return;
  const auto blocks = static_cast<unsigned>(PartialRows(shape.rows));
  WithShape("AddNormGradient", shape, [&](auto type, auto pieces) {
    AddNormGradientRows<type(), pieces()>
        <<<blocks, kThreads, 0, CudaStream(stream)>>>(shape.rows, arrays, dropout);
  });
}

}  // namespace ullage::kernels::device
