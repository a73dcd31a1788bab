#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/add_norm.h"
#include "kernels/column_sums.h"
#include "kernels/dropout_hash.h"
#include "kernels/scalar_cast.h"

namespace ullage::kernels::reference {
namespace {

constexpr int kLanes = 32;
constexpr int kWarps = 8;  // of a block

// Note [Order of a row's sum]
// A warp reads a row in pieces of 512 bytes, each of its 32 lanes 16 bytes of a piece. A lane adds
// up its own elements in their order; then lanes add up in pairs, first those 16 apart, then 8, 4,
// 2 and 1, after which each has the same sum.
template <class Term>
float RowSum(DType dtype, int64_t width, const Term& term) {
  const int64_t vector = 16 / ElementBytes(dtype);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < width; ++i) {
    float& lane = lanes[i / vector % kLanes];
    lane = term(i, lane);
  }
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    float next[kLanes];
    for (int i = 0; i < kLanes; ++i) next[i] = lanes[i] + lanes[i ^ distance];
    for (int i = 0; i < kLanes; ++i) lanes[i] = next[i];
  }
  return lanes[0];
}

float Factor(const DropoutKey& dropout, int64_t index) {
  return DropoutFactor(dropout, static_cast<std::uint64_t>(index));
}

float Rounded(DType dtype, float value) {
  std::uint32_t place = 0;
  StoreFloat(dtype, &place, 0, value);
  return LoadFloat(dtype, &place, 0);
}

// Sums of columns over the rows of each block: a block's eight warps take rows `8 * blocks` apart,
// each adds up its own, and then they are added in the order of the warps.
// `add(row, warp's sums)`; `columns`: the floats of a block.
template <class Add>
void PartialSums(int64_t rows, int64_t columns, float* partials, const Add& add) {
  const int64_t blocks = PartialRows(rows);
  std::vector<float> warp(static_cast<std::size_t>(columns));
  for (int64_t block = 0; block < blocks; ++block) {
    float* out = partials + block * columns;
    for (int w = 0; w < kWarps; ++w) {
      std::fill(warp.begin(), warp.end(), 0.0F);
      for (int64_t row = block * kWarps + w; row < rows; row += blocks * kWarps) {
        add(row, warp.data());
      }
      for (int64_t i = 0; i < columns; ++i) {
        const float value = warp[static_cast<std::size_t>(i)];
        out[i] = w == 0 ? value : out[i] + value;
      }
    }
  }
}

}  // namespace

void AddNorm(const Matrix& shape, const AddNormArrays& arrays, double epsilon,
             const DropoutKey& dropout) {
  const DType dtype = shape.dtype;
  const auto width = static_cast<float>(shape.width);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t first = row * shape.width;
    const auto sum = [&](int64_t i) { return LoadFloat(dtype, arrays.sum, first + i); };
    for (int64_t i = first; i < first + shape.width; ++i) {
      const float in = Rounded(dtype, LoadFloat(dtype, arrays.in, i) * Factor(dropout, i));
      StoreFloat(dtype, arrays.sum, i, in + LoadFloat(dtype, arrays.residual, i));
    }
    const float mean =
        RowSum(dtype, shape.width, [&](int64_t i, float s) { return s + sum(i); }) / width;
    const float squares = RowSum(dtype, shape.width, [&](int64_t i, float s) {
      const float d = sum(i) - mean;
      return std::fmaf(d, d, s);
    });
    const float rstd = 1.0F / std::sqrt(squares / width + static_cast<float>(epsilon));
    for (int64_t i = 0; i < shape.width; ++i) {
      const float h = (sum(i) - mean) * rstd;
      StoreFloat(dtype, arrays.out, first + i,
                 std::fmaf(h, LoadFloat(dtype, arrays.gamma, i), LoadFloat(dtype, arrays.beta, i)));
    }
    arrays.mean[row] = mean;
    arrays.rstd[row] = rstd;
  }
}

void AddNormGradient(const Matrix& shape, const AddNormGradientArrays& arrays,
                     const DropoutKey& dropout) {
  const DType dtype = shape.dtype;
  const auto width = static_cast<float>(shape.width);
  PartialSums(shape.rows, 3 * shape.width, arrays.partials, [&](int64_t row, float* sums) {
    const int64_t first = row * shape.width;
    const float mean = arrays.mean[row];
    const float rstd = arrays.rstd[row];
    const auto out = [&](int64_t i) { return LoadFloat(dtype, arrays.out_gradient, first + i); };
    const auto h = [&](int64_t i) {
      return (LoadFloat(dtype, arrays.sum, first + i) - mean) * rstd;
    };
    const auto g = [&](int64_t i) { return out(i) * LoadFloat(dtype, arrays.gamma, i); };
    const float mean_g =
        RowSum(dtype, shape.width, [&](int64_t i, float s) { return s + g(i); }) / width;
    const float mean_gh =
        RowSum(dtype, shape.width, [&](int64_t i, float s) { return std::fmaf(g(i), h(i), s); }) /
        width;
    for (int64_t i = 0; i < shape.width; ++i) {
      const float gradient = Rounded(dtype, rstd * ((g(i) - mean_g) - h(i) * mean_gh));
      const float in = Rounded(dtype, gradient * Factor(dropout, first + i));
      StoreFloat(dtype, arrays.residual_gradient, first + i, gradient);
      StoreFloat(dtype, arrays.in_gradient, first + i, in);
      float* const of_gamma = sums + i;
      float* const of_beta = sums + shape.width + i;
      float* const of_bias = sums + 2 * shape.width + i;
      *of_gamma = std::fmaf(out(i), h(i), *of_gamma);
      *of_beta += out(i);
      *of_bias += in;
    }
  });
}

void FinishColumnSums(std::span<const ColumnSum> sums) {
  for (const ColumnSum& sum : sums) {
    for (int64_t i = 0; i < sum.width; ++i) {
      float total = 0;
      for (int64_t w = 0; w < kWarps; ++w) {
        float part = 0;
        for (int64_t p = w; p < sum.count; p += kWarps) part += sum.partials[p * sum.stride + i];
        total = w == 0 ? part : total + part;
      }
      StoreFloat(sum.dtype, sum.out, i, total);
    }
  }
}

void PartialColumnSums(const Matrix& shape, const void* x, float* partials) {
  PartialSums(shape.rows, shape.width, partials, [&](int64_t row, float* sums) {
    for (int64_t i = 0; i < shape.width; ++i) {
      sums[i] += LoadFloat(shape.dtype, x, row * shape.width + i);
    }
  });
}

void GeluGradient(const Matrix& shape, const GeluGradientArrays& arrays) {
  constexpr float kSqrtHalf = 0.707106781F;
  constexpr float kPdfFactor = 0.398942280F;  // 1 / sqrt(2 pi)
  PartialSums(shape.rows, shape.width, arrays.partials, [&](int64_t row, float* sums) {
    for (int64_t i = 0; i < shape.width; ++i) {
      const int64_t at = row * shape.width + i;
      const float x = LoadFloat(shape.dtype, arrays.x, at);
      const float cdf = 0.5F * (1.0F + std::erf(x * kSqrtHalf));
      const float pdf = kPdfFactor * std::exp(-0.5F * x * x);
      const float out = LoadFloat(shape.dtype, arrays.out_gradient, at);
      const float gradient = Rounded(shape.dtype, out * std::fmaf(x, pdf, cdf));
      StoreFloat(shape.dtype, arrays.x_gradient, at, gradient);
      sums[i] += gradient;
    }
  });
}

}  // namespace ullage::kernels::reference
