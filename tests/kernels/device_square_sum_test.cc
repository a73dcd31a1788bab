// Sums of squares on the device have the words of the host's.
#include <algorithm>

#include "kernels/device.h"
#include "kernels/device_data.h"
#include "kernels/norm.h"
#include "kernels/scalar_cast.h"

namespace ullage::kernels {
namespace {

using device::SquareSumWords;

// `count` results in device memory that begin as garbage and are then cleared.
class DeviceSums {
 public:
  explicit DeviceSums(size_t count)
      : sums_(Array<std::byte>(count * sizeof(SquareSumWords), std::byte{0xa5})) {
    device::ClearSquareSums(at(0), static_cast<int64_t>(count), nullptr);
    MustSucceed(cudaDeviceSynchronize());
  }
  SquareSumWords* at(size_t index) const {
    return reinterpret_cast<SquareSumWords*>(sums_.data()) + index;
  }
  SquareSumWords Host(size_t index) const {
    SquareSumWords words;
    std::memcpy(&words, sums_.Host().data() + index * sizeof(words), sizeof(words));
    return words;
  }

 private:
  DeviceArray<std::byte> sums_;
};

void ExpectSame(const SquareSumWords& actual, SquareSum& expected) {
  ExactSum sum = ExactSum::FromWords(actual.words);
  EXPECT_TRUE(std::ranges::equal(sum.words(), expected.sum.words()))
      << sum.ToDouble() << " and " << expected.sum.ToDouble();
  const bool finite = expected.first_non_finite < 0;
  EXPECT_EQ(actual.first_non_finite, finite ? SquareSumWords::kNone : expected.first_non_finite);
}

void ExpectSame(DType dtype, const Bytes& values, const Part& part) {
  SCOPED_TRACE(Describe(part));
  const DeviceArray<std::byte> x(values);
  const DeviceSums sums(1);
  device::AddSumOfSquares(dtype, At(dtype, static_cast<void*>(x.data()), part.begin), part.count,
                          sums.at(0), nullptr);
  SquareSum expected;
  reference::AddSumOfSquares(dtype, At(dtype, static_cast<const void*>(values.data()), part.begin),
                             part.count, expected);
  ExpectSame(sums.Host(0), expected);
}

Floats FiniteFloats(int64_t n, uint64_t seed) {
  Floats values = AnyFloats(n, seed);
  for (float& value : values) {
    if (!(std::fabs(value) < 65000)) value = 1.5f;  // finite in fp16 too
  }
  return values;
}

TEST(DeviceSquareSums, FortyMillionElementsOfEveryTypeHaveTheWordsOfTheHost) {
  const Floats few = FiniteFloats(kMany, 1);
  Floats many;  // enough for every warp to come round several times
  for (int i = 0; i < 40; ++i) many.insert(many.end(), few.begin(), few.end() - i);
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    ExpectSame(dtype, As(dtype, many), {0, static_cast<int64_t>(many.size())});
  }
}

TEST(DeviceSquareSums, ValuesOfEverySizeMixed) {
  Floats values(200'000);
  constexpr float kScales[] = {1.0f, 1e-30f, 1e30f, 1e-45f, 3e38f, 1e-10f, 0.0f};
  const Floats normal = NormalFloats(200'000, 2);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal[i] * kScales[i / 64 % std::size(kScales)];
    if (!std::isfinite(values[i])) values[i] = 3e38f;
  }
  ExpectSame(DType::kFloat32, As(DType::kFloat32, values), {0, 200'000});
  ExpectSame(DType::kFloat32, As(DType::kFloat32, Floats(200'000)), {0, 200'000});
}

TEST(DeviceSquareSums, AwkwardParts) {
  const Floats values = FiniteFloats(5000, 3);
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    for (const Part& part : AwkwardParts()) ExpectSame(dtype, As(dtype, values), part);
  }
}

TEST(DeviceSquareSums, NameTheFirstNonFiniteElementAndLeaveItsGroupOut) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      for (size_t at : {0, 1, 63, 64, 127, 2500, 4159, 4160, 70'000, 99'999}) {
        SCOPED_TRACE(at);
        Floats values(100'000, 1.5f);
        values[at] = bad;
        values.back() = bad;
        ExpectSame(dtype, As(dtype, values), {0, 100'000});
      }
    }
    ExpectSame(dtype, As(dtype, Floats(100'000, NAN)), {0, 100'000});
  }
}

TEST(DeviceSquareSums, CallsOnTwoStreamsAddUp) {
  const Floats a = FiniteFloats(3'000'000, 4), b = FiniteFloats(2'000'001, 5);
  const DeviceArray<float> device_a(a), device_b(b);
  const DeviceSums sums(3);
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) {
    MustSucceed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  SquareSum expected;
  for (int i = 0; i < 5; ++i) {
    device::AddSumOfSquares(DType::kFloat32, device_a.data(), 3'000'000, sums.at(1), streams[0]);
    device::AddSumOfSquares(DType::kFloat32, device_b.data(), 2'000'001, sums.at(1), streams[1]);
    AddSumOfSquares(DType::kFloat32, a.data(), 3'000'000, expected);
    AddSumOfSquares(DType::kFloat32, b.data(), 2'000'001, expected);
  }
  ExpectSame(sums.Host(1), expected);
  SquareSum none;
  ExpectSame(sums.Host(0), none);
  ExpectSame(sums.Host(2), none);
  for (cudaStream_t stream : streams) MustSucceed(cudaStreamDestroy(stream));
}

TEST(DeviceSquareSums, KeepTheSmallestIndexOfSeveralCalls) {
  Floats values(200, 1.0f);
  values[150] = INFINITY;
  const DeviceArray<float> late(values);
  values[70] = NAN;
  const DeviceArray<float> early(values);
  const DeviceSums sums(1);
  for (const auto* x : {&late, &early, &late}) {
    device::AddSumOfSquares(DType::kFloat32, x->data(), 200, sums.at(0), nullptr);
  }
  EXPECT_EQ(sums.Host(0).first_non_finite, 70);
}

}  // namespace
}  // namespace ullage::kernels
