// Matrices for the tests of the kernels that layers are fused from.
#pragma once

#include <string>

#include "kernels/add_norm.h"
#include "kernels/column_sums.h"
#include "kernels/test_data.h"

namespace ullage::kernels {

// Everything that AddNorm and its gradient read, and room for what they write.
struct AddNormData {
  AddNormData(DType dtype, int64_t rows, int64_t width)
      : shape{dtype, rows, width},
        in(As(dtype, NormalFloats(rows * width, 1))),
        residual(As(dtype, NormalFloats(rows * width, 2))),
        gamma(As(dtype, NormalFloats(width, 3))),
        beta(As(dtype, NormalFloats(width, 4))),
        sum(in.size()),
        out(in.size()),
        mean(static_cast<std::size_t>(rows)),
        rstd(static_cast<std::size_t>(rows)),
        out_gradient(As(dtype, NormalFloats(rows * width, 5))),
        residual_gradient(in.size()),
        in_gradient(in.size()),
        partials(static_cast<std::size_t>(PartialRows(rows) * 3 * width)) {}

  AddNormArrays Arrays() {
    return {in.data(),  residual.data(), gamma.data(), beta.data(),
            sum.data(), out.data(),      mean.data(),  rstd.data()};
  }
  AddNormGradientArrays GradientArrays() {
    return {out_gradient.data(),      sum.data(),         mean.data(),    rstd.data(), gamma.data(),
            residual_gradient.data(), in_gradient.data(), partials.data()};
  }

  Matrix shape;
  Bytes in, residual, gamma, beta, sum, out;
  Floats mean, rstd;
  Bytes out_gradient, residual_gradient, in_gradient;
  Floats partials;
};

inline constexpr DropoutKey kDropout{0x123456789abcdef0, 0x40000000, 4.0F / 3};
inline constexpr double kEpsilon = 1e-5;

inline std::string Describe(const Matrix& shape) {
  return std::to_string(shape.rows) + " rows of " + std::to_string(shape.width) + " " +
         std::string(Name(shape.dtype));
}

// Every number of 512-byte pieces, and rows around those that one block and one grid take.
inline std::vector<Matrix> AddNormShapes() {
  std::vector<Matrix> shapes;
  for (const DType dtype : kTypes) {
    for (int64_t pieces = 1; pieces <= 4; ++pieces) {
      for (const int64_t rows : {1, 7, 8, 9, 333}) {
        shapes.push_back({dtype, rows, pieces * 512 / ElementBytes(dtype)});
      }
    }
    shapes.push_back({dtype, 2500, 512 / ElementBytes(dtype)});  // more than 256 blocks of 8
  }
  return shapes;
}

}  // namespace ullage::kernels
