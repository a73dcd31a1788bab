#include "kernels/exact_sum.h"

#include <algorithm>
#include <limits>

#include "kernels/test_data.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

double Sum(const std::vector<double>& values) {
  ExactSum sum;
  for (double value : values) sum.Add(value);
  return sum.ToDouble();
}

// Multiples of 2^-30 below 2^50 in magnitude, of widely different exponents.
std::vector<double> FixedPointValues(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> values(n);
  for (double& value : values) {
    const auto integer = static_cast<int64_t>(random() >> (12 + random() % 50));
    value = std::ldexp(static_cast<double>(integer), -30 + static_cast<int>(random() % 28));
    if (random() % 2 == 0) value = -value;
  }
  return values;
}

// Every finite bit pattern alike: exponents over the whole range.
std::vector<double> AnyFiniteDoubles(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> values(n);
  for (double& value : values) {
    do value = std::bit_cast<double>(random());
    while (!std::isfinite(value));
  }
  return values;
}

TEST(ExactSum, EqualsIntegerArithmetic) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto values = FixedPointValues(1 + seed * 20, seed);
    __int128 exact = 0;  // in units of 2^-30
    for (double value : values) exact += static_cast<__int128>(std::ldexp(value, 30));
    EXPECT_EQ(Sum(values), std::ldexp(static_cast<double>(exact), -30)) << seed;
  }
}

TEST(ExactSum, DoesNotDependOnOrderOrSplit) {
  auto values = AnyFiniteDoubles(5000, 7);
  ExactSum whole;
  for (double value : values) whole.Add(value);
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 50; ++trial) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> parts(1 + random() % 9);
    for (double value : values) parts[random() % parts.size()].Add(value);
    ExactSum total;
    for (const ExactSum& part : parts) total.Add(part);
    EXPECT_TRUE(std::ranges::equal(total.words(), whole.words()));
    EXPECT_EQ(total.ToDouble(), whole.ToDouble());
  }
}

TEST(ExactSum, OneValueComesBackUnchanged) {
  for (double value : AnyFiniteDoubles(100'000, 9)) ASSERT_EQ(Sum({value}), value);
  for (double value : {0.0, kMax, -kMax, kTiny, -kTiny, 0x1p-1022, 0x1.fffffffffffffp-1023}) {
    EXPECT_EQ(Sum({value}), value);
  }
}

TEST(ExactSum, CancelsWithoutTrace) {
  EXPECT_EQ(Sum({kMax, 1.0, kTiny, -1.0, -kMax}), kTiny);
  EXPECT_EQ(Sum({1e308, 1e308, 3.25, -1e308, -1e308}), 3.25);
  auto values = AnyFiniteDoubles(2000, 10);
  ExactSum sum;
  for (double value : values) sum.Add(value);
  std::ranges::reverse(values);
  for (double value : values) sum.Add(-value);
  EXPECT_EQ(sum.ToDouble(), 0.0);
  EXPECT_TRUE(std::ranges::all_of(sum.words(), [](int64_t word) { return word == 0; }));
}

TEST(ExactSum, RoundsToNearestEvenOnce) {
  EXPECT_EQ(Sum({1.0, 0x1p-53}), 1.0);                         // halfway, to even
  EXPECT_EQ(Sum({1.0, 0x1p-53, kTiny}), 0x1.0000000000001p0);  // a trace above halfway
  EXPECT_EQ(Sum({1.0, 0x1p-53, -kTiny}), 1.0);
  EXPECT_EQ(Sum({0x1.0000000000001p0, 0x1p-53}), 0x1.0000000000002p0);
  EXPECT_EQ(Sum({-1.0, -0x1p-53, -kTiny}), -0x1.0000000000001p0);
  EXPECT_EQ(Sum({0x1p-1022, -kTiny}), 0x1.ffffffffffffep-1023);  // subnormal: exact
}

TEST(ExactSum, OverflowsToInfinityOnlyAtTheEnd) {
  EXPECT_EQ(Sum({kMax, kMax}), INFINITY);
  EXPECT_EQ(Sum({-kMax, -kMax}), -INFINITY);
  EXPECT_EQ(Sum({kMax, kMax, -kMax}), kMax);
  EXPECT_EQ(Sum({kMax, 0x1p969}), kMax);  // less than half of the last place, 2^971
  EXPECT_EQ(Sum({kMax, 0x1p970}), INFINITY);
}

TEST(ExactSum, HoldsSquaresOfTheLargestAndTheSmallestFloats) {
  const double large = std::numeric_limits<float>::max();
  const double small = std::numeric_limits<float>::denorm_min();
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) sum.Add(large * large);
  sum.Add(small * small);
  for (int i = 0; i < 1000; ++i) sum.Add(-(large * large));
  EXPECT_EQ(sum.ToDouble(), 0x1p-298);
}

TEST(ExactSum, WordsAddUpAcrossAMillionRanks) {
  const auto values = AnyFiniteDoubles(64, 11);
  constexpr int64_t kRanks = 1 << 20;
  ExactSum one;
  for (double value : values) one.Add(std::ldexp(value, -30));
  ExactSum reduced = one;
  for (int64_t& word : reduced.words()) word *= kRanks;
  reduced.Normalize();
  ExactSum expected;  // the same, each value 2^20 times as large
  for (double value : values) expected.Add(std::ldexp(std::ldexp(value, -30), 20));
  EXPECT_TRUE(std::ranges::equal(reduced.words(), expected.words()));
}

TEST(ExactSum, WordsOfRanksAddToTheWholeWhateverTheSigns) {
  const auto values = AnyFiniteDoubles(999, 12);
  std::array<ExactSum, 3> ranks;
  ExactSum whole, reduced;
  for (size_t i = 0; i < values.size(); ++i) {
    ranks[i % 3].Add(values[i]);
    whole.Add(values[i]);
  }
  for (ExactSum& rank : ranks) {
    const auto from = rank.words();
    EXPECT_TRUE(std::all_of(from.begin(), from.end() - 1,
                            [](int64_t word) { return word >= 0 && word < int64_t{1} << 32; }));
    const auto to = reduced.words();
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  }
  reduced.Normalize();
  EXPECT_TRUE(std::ranges::equal(reduced.words(), whole.words()));
}

TEST(ExactSum, ComesBackFromItsWordsNormalisedOrNot) {
  const auto values = AnyFiniteDoubles(999, 13);
  ExactSum whole;
  std::array<int64_t, ExactSum::kWords> words{};
  for (double value : values) {  // each value's words added up as they are
    ExactSum one;
    one.Add(value);
    whole.Add(value);
    const auto parts = one.words();
    for (size_t i = 0; i < words.size(); ++i) words[i] += parts[i];
  }
  EXPECT_TRUE(std::ranges::any_of(words, [](int64_t word) { return word >> 32 > 0; }));
  EXPECT_TRUE(std::ranges::equal(ExactSum::FromWords(words).words(), whole.words()));
  const auto own = whole.words();
  const ExactSum again = ExactSum::FromWords(own.first<ExactSum::kWords>());
  EXPECT_EQ(again.ToDouble(), whole.ToDouble());
}

TEST(ExactSum, ClearIsZero) {
  ExactSum sum;
  sum.Add(-3);
  sum.Clear();
  EXPECT_EQ(sum.ToDouble(), 0.0);
  sum.Add(2);
  EXPECT_EQ(sum.ToDouble(), 2.0);
}

TEST(ExactSum, RefusesWhatIsNotFinite) {
  ExactSum sum;
  sum.Add(2);
  for (double value : {double{INFINITY}, -double{INFINITY}, double{NAN}}) {
    EXPECT_THROW(sum.Add(value), StateError);
  }
  EXPECT_EQ(sum.ToDouble(), 2.0);
}

}  // namespace
}  // namespace ullage::kernels
