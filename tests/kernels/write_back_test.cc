#include "kernels/write_back.h"

#include "kernels/cast.h"
#include "kernels/test_data.h"

namespace ullage::kernels {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

TEST(AdoptWrites, UntouchedWeightsKeepTheMastersDigits) {
  const Floats master = AnyFloats(kMany, 1);
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Bytes weight = As(dtype, master);
    OnEveryTarget([&] {
      Floats actual = master;
      EXPECT_EQ(AdoptWrites(dtype, weight.data(), actual.data(), kMany), 0);
      EXPECT_EQ(std::memcmp(actual.data(), master.data(), kMany * sizeof(float)), 0);
    });
  }
}

TEST(AdoptWrites, SetsExactlyTheElementsThatWereWritten) {
  OnEveryTarget([] {
    const Floats start(40, 1.001f);
    Floats written(40, 1.001f);
    written[3] = 2.5f;
    written[17] = -0.75f;
    written[39] = 7.0f;
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      Floats master = start;
      EXPECT_EQ(AdoptWrites(dtype, As(dtype, written).data(), master.data(), 40), 3);
      EXPECT_EQ(master, written);
    }
  });
}

TEST(AdoptWrites, NextValueOfTheWeightIsAWrite) {
  OnEveryTarget([] {
    const Array<uint16_t> weight(9, 0x3f81);  // bf16 1.0078125
    Floats master(9, 1.0f);
    EXPECT_EQ(AdoptWrites(DType::kBFloat16, weight.data(), master.data(), 9), 9);
    EXPECT_EQ(master, Floats(9, 1.0078125f));
  });
}

TEST(AdoptWrites, ZeroHasTwoSignsAndNanIsOneValue) {
  OnEveryTarget([] {
    Floats master(9, 0.0f);
    const Array<uint16_t> minus_zero(9, 0x8000);
    EXPECT_EQ(AdoptWrites(DType::kFloat16, minus_zero.data(), master.data(), 9), 9);
    EXPECT_TRUE(std::signbit(master[8]));

    const Array<uint16_t> some_nan(9, 0x7e55);
    EXPECT_EQ(AdoptWrites(DType::kFloat16, some_nan.data(), master.data(), 9), 9);
    EXPECT_TRUE(std::isnan(master[8]));
    const Array<uint16_t> other_nan(9, 0xfe00);
    EXPECT_EQ(AdoptWrites(DType::kFloat16, other_nan.data(), master.data(), 9), 0);

    const Array<uint16_t> one(9, 0x3c00);
    EXPECT_EQ(AdoptWrites(DType::kFloat16, one.data(), master.data(), 9), 9);
    EXPECT_EQ(master, Floats(9, 1.0f));
  });
}

TEST(AdoptWrites, VectorsGiveTheBitsOfTheReference) {
  const Floats master = AnyFloats(kMany, 1);
  Floats written = master;
  const Floats other = AnyFloats(kMany, 2);
  for (size_t i = 0; i < written.size(); i += 7) written[i] = other[i];
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Bytes weight = As(dtype, written);
    Floats expected = master;
    const int64_t changed = reference::AdoptWrites(dtype, weight.data(), expected.data(), kMany);
    EXPECT_GT(changed, kMany / 10);
    OnEveryTarget([&] {
      Floats actual = master;
      EXPECT_EQ(AdoptWrites(dtype, weight.data(), actual.data(), kMany), changed);
      ExpectSameNumbers(actual, expected);
      for (int64_t n = 0; n <= kLongestTail; ++n) {
        Floats tail(master.begin(), master.begin() + kLongestTail + 1), expected_tail = tail;
        ASSERT_EQ(AdoptWrites(dtype, weight.data(), tail.data(), n),
                  reference::AdoptWrites(dtype, weight.data(), expected_tail.data(), n));
        ExpectSameNumbers(tail, expected_tail);
      }
    });
  }
}

}  // namespace
}  // namespace ullage::kernels
