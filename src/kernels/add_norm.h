// Dropout, the addition of a residual and layer normalization in one pass, and their gradient: what
// ends each half of a BERT layer.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/dropout_hash.h"

namespace ullage::kernels {

// Rows of `width` elements, one after the other.
struct Matrix {
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t width = 0;
};

// Widths are a multiple of the 512 bytes that a warp reads at once, and at most four times that;
// arrays of the matrix's type start at multiples of 16 bytes.
constexpr bool AddNormTakes(DType dtype, int64_t width) {
  const int64_t at_once = 512 / ElementBytes(dtype);
  return width > 0 && width % at_once == 0 && width <= 4 * at_once;
}

// Sums over rows are made in two steps, the first of which leaves this many sums of each column.
constexpr int64_t PartialRows(int64_t rows) {
  const int64_t blocks = (rows + 7) / 8;
  return blocks < 256 ? blocks : 256;
}

// For each row, with f the factor of an element:
//   sum = round(round(in * f) + residual)
//   out = (sum - mean) * rstd * gamma + beta        in fp32, rounded once
// where mean and rstd = 1 / sqrt(variance + epsilon) are those of the row. `gamma`, `beta` [width]
// and all matrices are of shape.dtype; `mean` and `rstd` [rows] are kept for the gradient.
struct AddNormArrays {
  const void* in;
  const void* residual;
  const void* gamma;
  const void* beta;
  void* sum;
  void* out;
  float* mean;
  float* rstd;
};

// The gradient of the above: with h = (sum - mean) * rstd and g = out_gradient * gamma,
//   residual_gradient = rstd * (g - mean(g) - h * mean(g * h))       rounded
//   in_gradient       = residual_gradient * f                        rounded
//   partials [PartialRows(rows), 3, width]: sums over rows of out_gradient * h (for gamma),
//   out_gradient (for beta) and in_gradient (for the bias of the map that gave `in`).
struct AddNormGradientArrays {
  const void* out_gradient;
  const void* sum;
  const float* mean;
  const float* rstd;
  const void* gamma;
  void* residual_gradient;
  void* in_gradient;
  float* partials;
};

// Plain loops, with the order of additions of the device's kernels (Note [Order of a row's sum]),
// so that both give the same bits.
namespace reference {
void AddNorm(const Matrix& shape, const AddNormArrays& arrays, double epsilon,
             const DropoutKey& dropout);
void AddNormGradient(const Matrix& shape, const AddNormGradientArrays& arrays,
                     const DropoutKey& dropout);
}  // namespace reference

}  // namespace ullage::kernels
