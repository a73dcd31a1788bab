#include "kernels/norm.h"

#include <algorithm>
#include <limits>

#include "kernels/cast.h"
#include "kernels/test_data.h"

namespace ullage::kernels {
namespace {

SquareSum Of(const Floats& x) {
  SquareSum result;
  AddSumOfSquares(DType::kFloat32, x.data(), static_cast<int64_t>(x.size()), result);
  return result;
}

Floats FiniteFloats(int64_t n, uint64_t seed) {
  Floats values = AnyFloats(n, seed);
  std::erase_if(values, [](float value) { return !std::isfinite(value); });
  return values;
}

TEST(SumOfSquares, KnownValues) {
  OnEveryTarget([] {
    EXPECT_EQ(Of({}).sum.ToDouble(), 0);
    EXPECT_EQ(Of({3, -4}).sum.ToDouble(), 25);
    Floats counting(1000);
    for (size_t i = 0; i < 1000; ++i) counting[i] = static_cast<float>(i);
    EXPECT_EQ(Of(counting).sum.ToDouble(), 332833500);
    EXPECT_EQ(Of({0x1p-149f}).sum.ToDouble(), 0x1p-298);
    const double large = std::numeric_limits<float>::max();
    EXPECT_EQ(Of(Floats(128, std::numeric_limits<float>::max())).sum.ToDouble(),
              128 * (large * large));
  });
}

TEST(SumOfSquares, IsAsCloseAsDoubleAllows) {
  const Floats values = NormalFloats(kMany, 1);
  long double exact = 0;
  for (float value : values) exact += static_cast<long double>(value) * value;
  EXPECT_NEAR(Of(values).sum.ToDouble(), static_cast<double>(exact),
              static_cast<double>(exact) * 1e-15);
}

TEST(SumOfSquares, VectorsGiveTheBitsOfTheReference) {
  const Floats values = FiniteFloats(kMany, 2);
  SquareSum expected;
  reference::AddSumOfSquares(DType::kFloat32, values.data(), static_cast<int64_t>(values.size()),
                             expected);
  OnEveryTarget([&] {
    SquareSum actual = Of(values);
    EXPECT_TRUE(std::ranges::equal(actual.sum.words(), expected.sum.words()));
    EXPECT_EQ(actual.first_non_finite, -1);
    for (int64_t n = 0; n <= kLongestTail; ++n) {
      SquareSum tail, expected_tail;
      AddSumOfSquares(DType::kFloat32, values.data(), n, tail);
      reference::AddSumOfSquares(DType::kFloat32, values.data(), n, expected_tail);
      ASSERT_TRUE(std::ranges::equal(tail.sum.words(), expected_tail.sum.words())) << n;
    }
  });
}

TEST(SumOfSquares, SixteenBitElementsCountAsTheFloatsThatTheyAre) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(Name(dtype));
    const Bytes elements = As(dtype, FiniteFloats(kMany, 5));
    Floats floats(elements.size() / 2);
    reference::Convert(dtype, elements.data(), DType::kFloat32, floats.data(),
                       static_cast<int64_t>(floats.size()));
    // What was finite in fp32 may be infinite here: every batch of groups has its own first.
    OnEveryTarget([&] {
      for (size_t at = 0; at < floats.size(); at += 1000) {
        const auto n = static_cast<int64_t>(std::min<size_t>(1000, floats.size() - at));
        SquareSum actual, plain, expected;
        AddSumOfSquares(dtype, elements.data() + 2 * at, n, actual);
        reference::AddSumOfSquares(dtype, elements.data() + 2 * at, n, plain);
        reference::AddSumOfSquares(DType::kFloat32, floats.data() + at, n, expected);
        ASSERT_TRUE(std::ranges::equal(actual.sum.words(), expected.sum.words())) << at;
        ASSERT_TRUE(std::ranges::equal(plain.sum.words(), expected.sum.words())) << at;
        ASSERT_EQ(actual.first_non_finite, expected.first_non_finite) << at;
        ASSERT_EQ(plain.first_non_finite, expected.first_non_finite) << at;
      }
    });
  }
  const Array<uint16_t> three_and_four = {0x4040, 0x4080};  // bf16
  SquareSum sum;
  AddSumOfSquares(DType::kBFloat16, three_and_four.data(), 2, sum);
  EXPECT_EQ(sum.sum.ToDouble(), 25);
}

TEST(SumOfSquares, DoesNotDependOnSplitsAtMultiplesOf64) {
  const Floats values = FiniteFloats(100'000, 3);
  const auto n = static_cast<int64_t>(values.size());
  SquareSum whole = Of(values);
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 20; ++trial) {
    SquareSum total;
    for (int64_t at = 0; at < n;) {
      const int64_t length = std::min<int64_t>(n - at, 64 * static_cast<int64_t>(random() % 200));
      SquareSum part;  // as another rank or thread would hold it
      AddSumOfSquares(DType::kFloat32, values.data() + at, length, part);
      total.sum.Add(part.sum);
      at += length;
    }
    EXPECT_TRUE(std::ranges::equal(total.sum.words(), whole.sum.words()));
  }
}

TEST(SumOfSquares, ShortLastGroupEqualsOneFilledWithZeros) {
  for (size_t n = 1; n < 64; ++n) {
    Floats values = NormalFloats(static_cast<int64_t>(n), n);
    SquareSum tail = Of(values);
    values.resize(64, 0.0f);
    SquareSum full = Of(values);
    ASSERT_TRUE(std::ranges::equal(tail.sum.words(), full.sum.words())) << n;
  }
}

TEST(SumOfSquares, NamesTheFirstNonFiniteElement) {
  OnEveryTarget([] {
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      for (size_t at : {0, 1, 63, 64, 127, 2500, 4159, 4160, 4199}) {
        Floats values(4200, 1.0f);
        values[at] = bad;
        values.back() = bad;
        EXPECT_EQ(Of(values).first_non_finite, static_cast<int64_t>(at));
      }
    }
  });
}

TEST(SumOfSquares, KeepsAnEarlierFinding) {
  SquareSum result;
  const Floats bad(70, INFINITY);
  AddSumOfSquares(DType::kFloat32, bad.data() + 64, 1, result);
  result.first_non_finite += 1000;
  AddSumOfSquares(DType::kFloat32, bad.data(), 70, result);
  EXPECT_EQ(result.first_non_finite, 1000);
  EXPECT_EQ(result.sum.ToDouble(), 0);
}

}  // namespace
}  // namespace ullage::kernels
