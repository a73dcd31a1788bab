// The plain form of what layers are fused from is what its formulas say.
#include <cmath>
#include <vector>

#include "kernels/dropout_hash.h"
#include "kernels/layers_data.h"
#include "kernels/scalar_cast.h"

namespace ullage::kernels {
namespace {

double Unit(DType dtype) {  // half the distance between numbers near 1
  return dtype == DType::kFloat32 ? 6e-8 : dtype == DType::kFloat16 ? 5e-4 : 4e-3;
}

double Factor(int64_t index) {
  const bool kept = DropoutHash(kDropout.seed, static_cast<uint64_t>(index)) >= kDropout.threshold;
  return kept ? kDropout.scale : 0;
}

TEST(AddNorm, IsTheNormOfTheDroppedInputAndTheResidual) {
  for (const Matrix& shape : AddNormShapes()) {
    SCOPED_TRACE(Describe(shape));
    AddNormData data(shape.dtype, shape.rows, shape.width);
    reference::AddNorm(shape, data.Arrays(), kEpsilon, kDropout);
    const auto at = [&](const Bytes& array, int64_t i) -> double {
      return LoadFloat(shape.dtype, array.data(), i);
    };
    for (int64_t row = 0; row < shape.rows; row += 1 + shape.rows / 20) {
      double mean = 0, variance = 0;
      for (int64_t c = 0; c < shape.width; ++c) {
        const int64_t i = row * shape.width + c;
        const double expected = at(data.in, i) * Factor(i) + at(data.residual, i);
        ASSERT_NEAR(at(data.sum, i), expected, 8 * Unit(shape.dtype));
        mean += at(data.sum, i) / static_cast<double>(shape.width);
      }
      for (int64_t c = 0; c < shape.width; ++c) {
        const double d = at(data.sum, row * shape.width + c) - mean;
        variance += d * d / static_cast<double>(shape.width);
      }
      const double rstd = 1 / std::sqrt(variance + kEpsilon);
      ASSERT_NEAR(data.mean[static_cast<std::size_t>(row)], mean, 1e-6);
      ASSERT_NEAR(data.rstd[static_cast<std::size_t>(row)], rstd, 1e-6 * rstd);
      for (int64_t c = 0; c < shape.width; ++c) {
        const int64_t i = row * shape.width + c;
        const double expected =
            (at(data.sum, i) - mean) * rstd * at(data.gamma, c) + at(data.beta, c);
        ASSERT_NEAR(at(data.out, i), expected, (8 * Unit(shape.dtype) + 1e-5));
      }
    }
  }
}

TEST(AddNorm, WithoutDropoutTakesEverything) {
  AddNormData data(DType::kFloat32, 3, 128);
  reference::AddNorm(data.shape, data.Arrays(), kEpsilon, {});
  for (int64_t i = 0; i < 3 * 128; ++i) {
    EXPECT_EQ(LoadFloat(DType::kFloat32, data.sum.data(), i),
              LoadFloat(DType::kFloat32, data.in.data(), i) +
                  LoadFloat(DType::kFloat32, data.residual.data(), i));
  }
}

// Against differences of the sum of out * out_gradient.
TEST(AddNorm, HasTheGradientThatDifferencesGive) {
  AddNormData data(DType::kFloat32, 9, 128);
  reference::AddNorm(data.shape, data.Arrays(), kEpsilon, kDropout);
  reference::AddNormGradient(data.shape, data.GradientArrays(), kDropout);
  const int64_t width = data.shape.width;
  const auto loss = [&](double change, int64_t element) {
    const int64_t row = element / width;
    std::vector<double> sum;
    for (int64_t c = 0; c < width; ++c) {
      const int64_t i = row * width + c;
      sum.push_back(LoadFloat(DType::kFloat32, data.sum.data(), i) + (i == element ? change : 0));
    }
    double mean = 0, variance = 0, total = 0;
    for (const double x : sum) mean += x / static_cast<double>(width);
    for (const double x : sum) variance += (x - mean) * (x - mean) / static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) {
      total += (sum[static_cast<std::size_t>(c)] - mean) / std::sqrt(variance + kEpsilon) *
               LoadFloat(DType::kFloat32, data.gamma.data(), c) *
               LoadFloat(DType::kFloat32, data.out_gradient.data(), row * width + c);
    }
    return total;
  };
  for (int64_t i = 0; i < 9 * width; i += 5) {
    const double expected = (loss(1e-4, i) - loss(-1e-4, i)) / 2e-4;
    const float residual = LoadFloat(DType::kFloat32, data.residual_gradient.data(), i);
    EXPECT_NEAR(residual, expected, 1e-5);
    EXPECT_EQ(LoadFloat(DType::kFloat32, data.in_gradient.data(), i),
              residual * static_cast<float>(Factor(i)));
  }
}

TEST(AddNorm, PartialSumsAddUpToThoseOfColumns) {
  for (const DType dtype : kTypes) {
    const int64_t width = 512 / ElementBytes(dtype);
    AddNormData data(dtype, 2500, width);
    reference::AddNorm(data.shape, data.Arrays(), kEpsilon, kDropout);
    reference::AddNormGradient(data.shape, data.GradientArrays(), kDropout);
    std::vector<Floats> sums(3, Floats(static_cast<std::size_t>(width)));
    std::vector<ColumnSum> columns;
    for (int64_t k = 0; k < 3; ++k) {
      columns.push_back({data.partials.data() + k * width, PartialRows(2500), 3 * width,
                         DType::kFloat32, sums[static_cast<std::size_t>(k)].data(), width});
    }
    reference::FinishColumnSums(columns);
    for (int64_t c = 0; c < width; c += 7) {
      double of_gamma = 0, of_beta = 0, of_bias = 0;
      for (int64_t row = 0; row < 2500; ++row) {
        const int64_t i = row * width + c;
        const auto r = static_cast<std::size_t>(row);
        const double out = LoadFloat(dtype, data.out_gradient.data(), i);
        of_gamma += out * (LoadFloat(dtype, data.sum.data(), i) - data.mean[r]) * data.rstd[r];
        of_beta += out;
        of_bias += LoadFloat(dtype, data.in_gradient.data(), i);
      }
      EXPECT_NEAR(sums[0][static_cast<std::size_t>(c)], of_gamma, 1e-3);
      EXPECT_NEAR(sums[1][static_cast<std::size_t>(c)], of_beta, 1e-3);
      EXPECT_NEAR(sums[2][static_cast<std::size_t>(c)], of_bias, 1e-3);
    }
  }
}

TEST(ColumnSums, OfAMatrixAreItsColumnsAddedUp) {
  for (const DType dtype : kTypes) {
    for (const int64_t rows : {1, 8, 9, 2049, 5000}) {
      const Matrix shape{dtype, rows, 24};
      const Bytes x = As(dtype, NormalFloats(rows * 24, 1));
      Floats partials(static_cast<std::size_t>(PartialRows(rows) * 24));
      reference::PartialColumnSums(shape, x.data(), partials.data());
      Bytes out(static_cast<std::size_t>(24 * ElementBytes(dtype)));
      const ColumnSum sum{partials.data(), PartialRows(rows), 24, dtype, out.data(), 24};
      reference::FinishColumnSums({&sum, 1});
      for (int64_t c = 0; c < 24; ++c) {
        double expected = 0;
        for (int64_t row = 0; row < rows; ++row) {
          expected += LoadFloat(dtype, x.data(), row * 24 + c);
        }
        EXPECT_NEAR(
            LoadFloat(dtype, out.data(), c), expected,
            Unit(dtype) * std::fabs(expected) + 1e-4 * std::sqrt(static_cast<double>(rows)));
      }
    }
  }
}

TEST(GeluGradient, IsTheSlopeOfGelu) {
  const auto gelu = [](double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); };
  const Matrix shape{DType::kFloat32, 40, 64};
  const Bytes x = As(DType::kFloat32, NormalFloats(40 * 64, 1, 2));
  const Bytes gradient = As(DType::kFloat32, NormalFloats(40 * 64, 2));
  Bytes out(x.size());
  Floats partials(static_cast<std::size_t>(PartialRows(40) * 64));
  reference::GeluGradient(shape, {gradient.data(), x.data(), out.data(), partials.data()});
  std::vector<double> columns(64), sums(64);
  for (int64_t i = 0; i < 40 * 64; ++i) {
    const double at = LoadFloat(DType::kFloat32, x.data(), i);
    const double slope = (gelu(at + 1e-5) - gelu(at - 1e-5)) / 2e-5;
    const float result = LoadFloat(DType::kFloat32, out.data(), i);
    EXPECT_NEAR(result, slope * LoadFloat(DType::kFloat32, gradient.data(), i), 1e-5);
    columns[static_cast<std::size_t>(i % 64)] += result;
  }
  for (std::size_t i = 0; i < partials.size(); ++i) sums[i % 64] += partials[i];
  for (std::size_t c = 0; c < 64; ++c) EXPECT_NEAR(sums[c], columns[c], 1e-4);
}

TEST(AddNorm, SaysWhichWidthsItTakes) {
  EXPECT_TRUE(AddNormTakes(DType::kBFloat16, 768));
  EXPECT_TRUE(AddNormTakes(DType::kBFloat16, 1024));
  EXPECT_TRUE(AddNormTakes(DType::kFloat32, 384));
  EXPECT_FALSE(AddNormTakes(DType::kBFloat16, 1280));
  EXPECT_FALSE(AddNormTakes(DType::kBFloat16, 384));
  EXPECT_FALSE(AddNormTakes(DType::kFloat16, 0));
}

}  // namespace
}  // namespace ullage::kernels
