// Sums over the rows of matrices: gradients of biases.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/add_norm.h"

namespace ullage::kernels {

// What the second step of a sum over rows does: out[i] = the sum over the `count` rows of
// `partials`, which are `stride` floats apart, of element i, in fp32, rounded to `dtype`.
struct ColumnSum {
  const float* partials = nullptr;
  int64_t count = 0;
  int64_t stride = 0;
  DType dtype = DType::kFloat32;
  void* out = nullptr;
  int64_t width = 0;
};

// x * the cumulative normal distribution at x, as torch's gelu: its gradient, and that of the bias
// that was added to make x.
//   x_gradient = out_gradient * (cdf(x) + x * pdf(x))    rounded
//   partials [PartialRows(rows), width]: sums over rows of x_gradient
struct GeluGradientArrays {
  const void* out_gradient;
  const void* x;
  void* x_gradient;
  float* partials;
};

// Plain loops, with the device's order of additions.
namespace reference {
void FinishColumnSums(std::span<const ColumnSum> sums);
// partials [PartialRows(rows), width]: sums over rows of `x`.
void PartialColumnSums(const Matrix& shape, const void* x, float* partials);
void GeluGradient(const Matrix& shape, const GeluGradientArrays& arrays);
}  // namespace reference

}  // namespace ullage::kernels
