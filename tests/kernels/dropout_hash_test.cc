#include "kernels/dropout_hash.h"

#include <bit>

#include <gtest/gtest.h>

namespace ullage::kernels {
namespace {

TEST(DropoutHash, KnownValues) {
  static_assert(MixBits(0) == 0);
  static_assert(DropoutHash(0, 0) == 0);
  EXPECT_EQ(MixBits(1), 0x688990c0U);
  EXPECT_EQ(DropoutHash(0x123456789abcdef0, uint64_t{5} << 32 | 77), 0x2ee47ccU);
}

TEST(DropoutHash, EachHalfOfSeedAndIndexChangesHalfOfTheBits) {
  int changed[4] = {};
  for (uint64_t index = 1; index <= 10'000; ++index) {
    const uint32_t hash = DropoutHash(7, index);
    changed[0] += std::popcount(hash ^ DropoutHash(6, index));
    changed[1] += std::popcount(hash ^ DropoutHash(7 | uint64_t{1} << 32, index));
    changed[2] += std::popcount(hash ^ DropoutHash(7, index ^ 1));
    changed[3] += std::popcount(hash ^ DropoutHash(7, index | uint64_t{1} << 32));
  }
  for (int bits : changed) EXPECT_NEAR(bits / 10'000.0, 16, 0.2);
}

TEST(DropoutHash, IsUniform) {
  int buckets[16] = {};
  for (uint64_t index = 0; index < 160'000; ++index) ++buckets[DropoutHash(42, index) >> 28];
  for (int count : buckets) EXPECT_NEAR(count, 10'000, 400);
}

}  // namespace
}  // namespace ullage::kernels
