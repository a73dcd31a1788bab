// What layers are fused from has the bits of the plain form on the device.
#include "kernels/device_layers.h"

#include <cmath>

#include "kernels/device_data.h"
#include "kernels/layers_data.h"
#include "kernels/scalar_cast.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

void ExpectSameBytes(const DeviceArray<std::byte>& actual, const Bytes& expected,
                     const char* what) {
  EXPECT_EQ(std::memcmp(actual.Host().data(), expected.data(), expected.size()), 0) << what;
}

void ExpectSameFloats(const DeviceArray<float>& actual, const Floats& expected, const char* what) {
  EXPECT_EQ(std::memcmp(actual.Host().data(), expected.data(), 4 * expected.size()), 0) << what;
}

TEST(DeviceAddNorm, ForwardAndGradientHaveTheBitsOfThePlainForm) {
  for (const Matrix& shape : AddNormShapes()) {
    for (const DropoutKey& dropout : {kDropout, DropoutKey()}) {
      SCOPED_TRACE(Describe(shape));
      AddNormData data(shape.dtype, shape.rows, shape.width);
      const DeviceArray<std::byte> in(data.in), residual(data.residual), gamma(data.gamma),
          beta(data.beta), out(data.out), out_gradient(data.out_gradient),
          residual_gradient(data.residual_gradient), in_gradient(data.in_gradient);
      const DeviceArray<float> mean(data.mean), rstd(data.rstd), partials(data.partials);
      // The sum takes the place of the input, as the models have it.
      device::AddNorm(shape,
                      {in.data(), residual.data(), gamma.data(), beta.data(), in.data(), out.data(),
                       mean.data(), rstd.data()},
                      kEpsilon, dropout, nullptr);
      device::AddNormGradient(
          shape,
          {out_gradient.data(), in.data(), mean.data(), rstd.data(), gamma.data(),
           residual_gradient.data(), in_gradient.data(), partials.data()},
          dropout, nullptr);
      reference::AddNorm(shape, data.Arrays(), kEpsilon, dropout);
      reference::AddNormGradient(shape, data.GradientArrays(), dropout);
      ExpectSameBytes(in, data.sum, "sum");
      ExpectSameBytes(out, data.out, "out");
      ExpectSameFloats(mean, data.mean, "mean");
      ExpectSameFloats(rstd, data.rstd, "rstd");
      ExpectSameBytes(residual_gradient, data.residual_gradient, "residual_gradient");
      ExpectSameBytes(in_gradient, data.in_gradient, "in_gradient");
      ExpectSameFloats(partials, data.partials, "partials");
    }
  }
}

TEST(DeviceAddNorm, RefusesOtherWidths) {
  EXPECT_THROW(device::AddNorm({DType::kBFloat16, 1, 100}, {}, kEpsilon, {}, nullptr), StateError);
  EXPECT_THROW(device::AddNormGradient({DType::kBFloat16, 1, 1280}, {}, {}, nullptr), StateError);
}

TEST(DeviceColumnSums, OfSeveralMatricesHaveTheBitsOfThePlainForm) {
  for (const DType dtype : kTypes) {
    for (const int64_t width : {8, 72, 768, 3072}) {
      for (const int64_t rows : {1, 9, 2500}) {
        const Matrix shape{dtype, rows, width};
        SCOPED_TRACE(Describe(shape));
        const int64_t blocks = PartialRows(rows);
        const Bytes one = As(dtype, NormalFloats(rows * width, 1));
        const Bytes two = As(dtype, NormalFloats(rows * width, 2));
        Floats partials(static_cast<std::size_t>(2 * blocks * width));
        Bytes sums(static_cast<std::size_t>(2 * width * ElementBytes(dtype)));
        const DeviceArray<std::byte> one_there(one), two_there(two), sums_there(sums);
        const DeviceArray<float> partials_there(partials);
        const auto finish = [&](float* from, std::byte* to) {
          std::vector<ColumnSum> all;
          for (int64_t i = 0; i < 2; ++i) {
            all.push_back(
                {from + i * blocks * width, blocks, width, dtype, At(dtype, to, i * width), width});
          }
          return all;
        };
        const void* const matrices[] = {one_there.data(), two_there.data()};
        device::PartialColumnSums(shape, matrices, partials_there.data(), nullptr);
        device::FinishColumnSums(finish(partials_there.data(), sums_there.data()), nullptr);
        reference::PartialColumnSums(shape, one.data(), partials.data());
        reference::PartialColumnSums(shape, two.data(), partials.data() + blocks * width);
        reference::FinishColumnSums(finish(partials.data(), sums.data()));
        ExpectSameFloats(partials_there, partials, "partials");
        ExpectSameBytes(sums_there, sums, "sums");
      }
    }
  }
}

TEST(DeviceColumnSums, OfDifferentWidthsAreFinishedTogether) {
  const Floats partials = NormalFloats(50 * 300, 1);
  Floats narrow(5), wide(300);
  const DeviceArray<float> partials_there(partials), narrow_there(narrow), wide_there(wide);
  const auto sums = [](const float* from, float* to_narrow, float* to_wide) {
    return std::vector<ColumnSum>{{from, 50, 300, DType::kFloat32, to_narrow, 5},
                                  {from, 50, 300, DType::kFloat32, to_wide, 300}};
  };
  device::FinishColumnSums(sums(partials_there.data(), narrow_there.data(), wide_there.data()),
                           nullptr);
  reference::FinishColumnSums(sums(partials.data(), narrow.data(), wide.data()));
  ExpectSameFloats(narrow_there, narrow, "narrow");
  ExpectSameFloats(wide_there, wide, "wide");
  const std::vector<ColumnSum> nine(9);
  EXPECT_THROW(device::FinishColumnSums(nine, nullptr), StateError);
}

TEST(DeviceGeluGradient, IsThePlainFormToARoundingAndRepeats) {
  for (const DType dtype : kTypes) {
    const Matrix shape{dtype, 2100, 3072};
    SCOPED_TRACE(Describe(shape));
    const Bytes x = As(dtype, NormalFloats(2100 * 3072, 1, 2));
    const Bytes gradient = As(dtype, NormalFloats(2100 * 3072, 2));
    Bytes expected(x.size());
    Floats partials(static_cast<std::size_t>(PartialRows(2100) * 3072));
    const DeviceArray<std::byte> x_there(x), first(gradient), second(gradient);
    const DeviceArray<float> first_partials(partials), second_partials(partials);
    device::GeluGradient(shape, {first.data(), x_there.data(), first.data(), first_partials.data()},
                         nullptr);
    device::GeluGradient(
        shape, {second.data(), x_there.data(), second.data(), second_partials.data()}, nullptr);
    reference::GeluGradient(shape, {gradient.data(), x.data(), expected.data(), partials.data()});
    const Bytes actual = first.Host();
    const double unit = dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
    int64_t wrong = 0;
    for (int64_t i = 0; i < 2100 * 3072; ++i) {
      const double is = LoadFloat(dtype, actual.data(), i);
      const double should = LoadFloat(dtype, expected.data(), i);
      // Near the minimum of GELU its two terms cancel, and what they differ by remains.
      const double terms = std::fabs(LoadFloat(dtype, gradient.data(), i));
      wrong += std::fabs(is - should) > unit * (std::fabs(should) + terms);
    }
    EXPECT_EQ(wrong, 0);
    ExpectSameBytes(second, actual, "again");
    ExpectSameFloats(second_partials, first_partials.Host(), "partials again");
    const Floats sums = first_partials.Host();
    for (std::size_t i = 0; i < sums.size(); i += 11) ASSERT_NEAR(sums[i], partials[i], 0.05);
  }
}

}  // namespace
}  // namespace ullage::kernels
