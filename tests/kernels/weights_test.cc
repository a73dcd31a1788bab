#include "kernels/weights.h"

#include <limits>

#include "kernels/cast.h"
#include "kernels/test_data.h"

namespace ullage::kernels {
namespace {

float FromBits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

double BFloat16Value(uint16_t bits) {
  if ((bits & 0x7fff) == 0x7f80) return std::copysign(0x1p128, bits & 0x8000 ? -1 : 1);
  return FromBits(static_cast<uint32_t>(bits) << 16);
}

struct Stored {
  uint16_t weight;
  int16_t extension;
  float master;
};

// What becomes of one bf16 master among others.
Stored StoreOne(float master) {
  const Floats masters(40, master);
  Array<uint16_t> weight(40);
  Array<int16_t> extension(40);
  const WeightRange range{DType::kBFloat16, weight.data(), extension.data()};
  StoreMaster(range, masters.data(), 40);
  Floats back(40);
  LoadMaster(range, back.data(), 40);
  return {weight[7], extension[7], back[7]};
}

TEST(Weights, EveryLowerHalfOfABFloat16MasterComesBackAndTheWeightIsTheNearest) {
  Floats masters(65536), back(65536);
  Array<uint16_t> weight(65536);
  Array<int16_t> extension(65536);
  const WeightRange range{DType::kBFloat16, weight.data(), extension.data()};
  OnEveryTarget([&] {
    for (uint32_t high : {0x0000, 0x0001, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x7f7e, 0x7f7f, 0x8000,
                          0x8001, 0x807f, 0xbf80, 0xc27f, 0xff7f}) {
      for (uint32_t low = 0; low < 65536; ++low) masters[low] = FromBits(high << 16 | low);
      StoreMaster(range, masters.data(), 65536);
      LoadMaster(range, back.data(), 65536);
      ASSERT_EQ(std::memcmp(back.data(), masters.data(), 65536 * sizeof(float)), 0) << high;
      for (size_t low = 0; low < 65536; ++low) {
        const double master = masters[low];
        const double below = std::fabs(BFloat16Value(static_cast<uint16_t>(high)) - master);
        const double above = std::fabs(BFloat16Value(static_cast<uint16_t>(high + 1)) - master);
        ASSERT_EQ(weight[low], below < above ? high : high + 1) << high << ' ' << low;
      }
    }
  });
}

TEST(Weights, BFloat16TiesGoAwayFromZero) {
  OnEveryTarget([] {
    EXPECT_EQ(StoreOne(FromBits(0x3f808000)).weight, 0x3f81);  // to even: 0x3f80
    EXPECT_EQ(StoreOne(FromBits(0x3f808000)).extension, -32768);
    EXPECT_EQ(StoreOne(FromBits(0x3f818000)).weight, 0x3f82);
    EXPECT_EQ(StoreOne(FromBits(0xbf808000)).weight, 0xbf81);
    EXPECT_EQ(StoreOne(FromBits(0x00008000)).weight, 0x0001);
    EXPECT_EQ(StoreOne(FromBits(0x3f807fff)).weight, 0x3f80);
    EXPECT_EQ(StoreOne(FromBits(0x3f807fff)).extension, 32767);
  });
}

TEST(Weights, BFloat16KeepsTheSignOfZeroAndFinitesThatRoundToInfinity) {
  OnEveryTarget([] {
    constexpr float kLargest = std::numeric_limits<float>::max();
    EXPECT_EQ(StoreOne(kLargest).weight, 0x7f80);
    EXPECT_EQ(StoreOne(kLargest).extension, -1);
    EXPECT_EQ(StoreOne(kLargest).master, kLargest);
    EXPECT_EQ(StoreOne(-kLargest).weight, 0xff80);
    EXPECT_EQ(StoreOne(-kLargest).master, -kLargest);
    EXPECT_EQ(StoreOne(INFINITY).weight, 0x7f80);
    EXPECT_EQ(StoreOne(INFINITY).extension, 0);
    EXPECT_EQ(StoreOne(-INFINITY).master, -INFINITY);
    EXPECT_EQ(StoreOne(-0.0f).weight, 0x8000);
    EXPECT_TRUE(std::signbit(StoreOne(-0.0f).master));
    EXPECT_EQ(StoreOne(0x1p-149f).weight, 0);
    EXPECT_EQ(StoreOne(0x1p-149f).master, 0x1p-149f);
  });
}

TEST(Weights, BFloat16NanIsTheQuietOneOfItsSign) {
  OnEveryTarget([] {
    for (uint32_t bits : {0x7f800001, 0x7f808000, 0x7fc00000, 0x7fffffff}) {
      for (uint32_t sign : {0x00000000u, 0x80000000u}) {
        const Stored stored = StoreOne(FromBits(bits | sign));
        EXPECT_EQ(stored.weight, 0x7fc0 | sign >> 16);
        EXPECT_EQ(stored.extension, 0);
        EXPECT_TRUE(std::isnan(stored.master));
      }
    }
  });
}

TEST(Weights, Fp16IsTheRoundedMasterBesideItAndFp32IsItsOwn) {
  const Floats masters = AnyFloats(1000, 1);
  OnEveryTarget([&] {
    Bytes weight(2000), own(4000);
    Floats extension(1000), back(1000);
    const WeightRange fp16{DType::kFloat16, weight.data(), extension.data()};
    StoreMaster(fp16, masters.data(), 1000);
    EXPECT_EQ(weight, As(DType::kFloat16, masters));
    EXPECT_EQ(std::memcmp(extension.data(), masters.data(), 4000), 0);
    LoadMaster(fp16, back.data(), 1000);
    EXPECT_EQ(std::memcmp(back.data(), masters.data(), 4000), 0);

    StoreMaster({DType::kFloat32, own.data(), nullptr}, masters.data(), 1000);
    EXPECT_EQ(std::memcmp(own.data(), masters.data(), 4000), 0);
  });
  EXPECT_EQ(MasterExtensionBytes(DType::kFloat32), 0);
  EXPECT_EQ(MasterExtensionBytes(DType::kBFloat16), 2);
  EXPECT_EQ(MasterExtensionBytes(DType::kFloat16), 4);
}

TEST(Weights, VectorsGiveTheBitsOfTheReferenceAndTouchNothingElse) {
  const Floats masters = AnyFloats(kMany, 2);
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    Weights expected(dtype, masters);
    const Floats expected_masters = expected.Masters();
    OnEveryTarget([&] {
      Weights actual(dtype, Floats(kMany));
      StoreMaster(actual.Range(), masters.data(), kMany);
      EXPECT_EQ(actual.weight, expected.weight);
      EXPECT_EQ(actual.extension, expected.extension);
      Floats back(kMany);
      LoadMaster(expected.Range(), back.data(), kMany);
      EXPECT_EQ(std::memcmp(back.data(), expected_masters.data(), kMany * sizeof(float)), 0);
      const Weights seven(dtype, Floats(kLongestTail + 1, 7.5f));
      for (int64_t n = 0; n <= kLongestTail; ++n) {
        Floats mixed(kLongestTail + 1, 7.5f), loaded = mixed;
        std::copy_n(masters.begin(), n, mixed.begin());
        Weights tail = seven;
        StoreMaster(tail.Range(), masters.data(), n);
        const Weights expected_tail(dtype, mixed);
        ASSERT_EQ(tail.weight, expected_tail.weight) << n;
        ASSERT_EQ(tail.extension, expected_tail.extension) << n;
        LoadMaster(expected.Range(), loaded.data(), n);
        std::copy_n(expected_masters.begin(), n, mixed.begin());
        ASSERT_EQ(std::memcmp(loaded.data(), mixed.data(), mixed.size() * sizeof(float)), 0) << n;
      }
    });
  }
}

TEST(Weights, SkipStartsLater) {
  for (DType dtype : kTypes) {
    Weights weights(dtype, {1.001f, 2.002f, 3.003f});
    Floats last(1);
    LoadMaster(Skip(weights.Range(), 2), last.data(), 1);
    EXPECT_EQ(last[0], 3.003f);
  }
}

}  // namespace
}  // namespace ullage::kernels
