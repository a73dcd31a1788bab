#include "kernels/write_back.h"

#include "kernels/cast.h"
#include "kernels/test_data.h"

namespace ullage::kernels {
namespace {

// Weights of `dtype` with the given bits.
Bytes Elements(const Array<uint16_t>& bits) {
  Bytes bytes(2 * bits.size());
  std::memcpy(bytes.data(), bits.data(), bytes.size());
  return bytes;
}

TEST(AdoptWrites, UntouchedWeightsKeepTheMastersDigits) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Weights start(dtype, AnyFloats(kMany, 1));
    OnEveryTarget([&] {
      Weights actual = start;
      EXPECT_EQ(AdoptWrites(start.weight.data(), actual.Range(), kMany), 0);
      EXPECT_EQ(actual.weight, start.weight);
      EXPECT_EQ(actual.extension, start.extension);
    });
  }
}

TEST(AdoptWrites, SetsExactlyTheElementsThatWereWritten) {
  OnEveryTarget([] {
    Floats written(40, 1.001f);
    written[3] = 2.5f;
    written[17] = -0.75f;
    written[39] = 7.0f;
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const Weights before(dtype, Floats(40, 1.001f));
      Weights after = before;
      after.weight = As(dtype, written);
      EXPECT_EQ(AdoptWrites(before.weight.data(), after.Range(), 40), 3);
      EXPECT_EQ(after.Masters(), written);
      EXPECT_EQ(after.weight, As(dtype, written));
    }
  });
}

TEST(AdoptWrites, CountsWritesToFp32AndLeavesThem) {
  OnEveryTarget([] {
    Weights before(DType::kFloat32, Floats(40, 1.001f)), after = before;
    Floats written(40, 1.001f);
    written[39] = 1.0f;
    after.weight = As(DType::kFloat32, written);
    EXPECT_EQ(AdoptWrites(before.weight.data(), after.Range(), 40), 1);
    EXPECT_EQ(after.Masters(), written);
  });
}

TEST(AdoptWrites, NextValueOfTheWeightIsAWrite) {
  OnEveryTarget([] {
    const Weights before(DType::kBFloat16, Floats(9, 1.001f));
    Weights after = before;
    after.weight = Elements(Array<uint16_t>(9, 0x3f81));  // 1.0078125
    EXPECT_EQ(AdoptWrites(before.weight.data(), after.Range(), 9), 9);
    EXPECT_EQ(after.Masters(), Floats(9, 1.0078125f));
  });
}

TEST(AdoptWrites, ZeroHasTwoSignsAndNanIsOneValue) {
  OnEveryTarget([] {
    const auto write = [](Weights& weights, uint16_t bits) {
      const Bytes before = weights.weight;
      weights.weight = Elements(Array<uint16_t>(9, bits));
      return AdoptWrites(before.data(), weights.Range(), 9);
    };
    Weights fp16(DType::kFloat16, Floats(9, 1e-12f));
    EXPECT_EQ(write(fp16, 0x8000), 9);
    EXPECT_TRUE(std::signbit(fp16.Masters()[8]));
    EXPECT_EQ(write(fp16, 0x7e55), 9);
    EXPECT_TRUE(std::isnan(fp16.Masters()[8]));
    EXPECT_EQ(write(fp16, 0xfe00), 0);  // another NaN
    EXPECT_EQ(write(fp16, 0x3c00), 9);
    EXPECT_EQ(fp16.Masters(), Floats(9, 1.0f));

    Weights bf16(DType::kBFloat16, Floats(9, 1e-44f));
    EXPECT_EQ(bf16.Masters()[8], 1e-44f);
    EXPECT_EQ(write(bf16, 0x8000), 9);
    EXPECT_TRUE(std::signbit(bf16.Masters()[8]));
    EXPECT_EQ(write(bf16, 0x7fc0), 9);
    EXPECT_EQ(write(bf16, 0xff81), 0);
    EXPECT_TRUE(std::isnan(bf16.Masters()[8]));
    EXPECT_EQ(write(bf16, 0x3f80), 9);
    EXPECT_EQ(bf16.Masters(), Floats(9, 1.0f));
  });
}

TEST(AdoptWrites, VectorsGiveTheBitsOfTheReference) {
  const Floats masters = AnyFloats(kMany, 1), other = AnyFloats(kMany, 2);
  Floats written = masters;
  for (size_t i = 0; i < written.size(); i += 7) written[i] = other[i];
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Weights before(dtype, masters);
    Weights start = before;
    start.weight = Weights(dtype, written).weight;
    Weights expected = start;
    const int64_t changed = reference::AdoptWrites(before.weight.data(), expected.Range(), kMany);
    EXPECT_GT(changed, kMany / 10);
    OnEveryTarget([&] {
      Weights actual = start;
      EXPECT_EQ(AdoptWrites(before.weight.data(), actual.Range(), kMany), changed);
      EXPECT_EQ(actual.weight, expected.weight);
      EXPECT_EQ(actual.extension, expected.extension);
      for (int64_t n = 0; n <= kLongestTail; ++n) {
        const auto head = [](const Floats& floats) {
          return Floats(floats.begin(), floats.begin() + kLongestTail + 1);
        };
        Weights tail(dtype, head(masters));
        tail.weight = Weights(dtype, head(written)).weight;
        Weights expected_tail = tail;
        ASSERT_EQ(AdoptWrites(before.weight.data(), tail.Range(), n),
                  reference::AdoptWrites(before.weight.data(), expected_tail.Range(), n));
        ASSERT_EQ(tail.extension, expected_tail.extension) << n;
      }
    });
  }
}

}  // namespace
}  // namespace ullage::kernels
