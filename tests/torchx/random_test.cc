// Random numbers that depend on what is computed.
#include "torchx/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <bit>
#include <set>
#include <vector>

#include "ullage/error.h"

namespace ullage::torchx {
namespace {

TEST(Random, SeedsOfAGridAreDistinct) {
  std::set<std::uint64_t> seeds;
  constexpr int kSide = 40;
  for (std::uint64_t seed = 0; seed < kSide; ++seed) {
    for (std::uint64_t step = 0; step < kSide; ++step) {
      for (std::uint64_t index = 0; index < kSide; ++index) {
        seeds.insert(MixSeed(seed, step, index));
      }
    }
  }
  EXPECT_EQ(seeds.size(), std::size_t{kSide} * kSide * kSide);
}

TEST(Random, NeighboursHaveUnrelatedBits) {
  int differing = 0;
  for (std::uint64_t index = 0; index < 1000; ++index) {
    differing += std::popcount(MixSeed(1, 2, index) ^ MixSeed(1, 2, index + 1));
  }
  EXPECT_NEAR(differing / 1000.0, 32, 1);
}

TEST(Random, TheSeedIsAFunctionOfItsThreeNumbers) {
  EXPECT_EQ(MixSeed(3, 4, 5), MixSeed(3, 4, 5));
  EXPECT_NE(MixSeed(3, 4, 5), MixSeed(3, 5, 4));
  EXPECT_NE(MixSeed(3, 4, 5), MixSeed(4, 3, 5));
}

TEST(Random, ASeededScopeGivesTheSameNumbersAndRestoresTheState) {
  at::manual_seed(11);
  (void)at::randn({3});  // an odd count of normals: one is kept for the next call
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  at::Tensor first, second;
  {
    const SeededRandom seeded(42, c10::kCPU);
    first = at::randn({17});
  }
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  {
    const SeededRandom seeded(42, c10::kCPU);
    second = at::randn({17});
  }
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  {
    const SeededRandom seeded(43, c10::kCPU);
    EXPECT_FALSE(at::equal(first, at::randn({17})));
  }
}

TEST(Random, ScopesNest) {
  const SeededRandom outer(1, c10::kCPU);
  const at::Tensor a = at::rand({5});
  at::Tensor b;
  {
    const SeededRandom inner(2, c10::kCPU);
    (void)at::rand({7});
  }
  b = at::rand({5});
  const SeededRandom again(1, c10::kCPU);
  EXPECT_TRUE(at::equal(at::rand({5}), a));
  EXPECT_TRUE(at::equal(at::rand({5}), b));
}

TEST(Random, TheStateIsRestoredWhenTheBodyThrows) {
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  try {
    const SeededRandom seeded(5, c10::kCPU);
    (void)at::rand({5});
    throw 1;
  } catch (int) {
  }
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
}

// A table in the host's memory: what lies at a place is what DrawSeed said.
TEST(SeedTable, HoldsWhatWasDrawnInOrder) {
  SeedTable table(c10::kCPU);
  std::vector<Seed> seeds, plain;
  {
    const SeededRandom seeded(7, c10::kCPU);
    const SeedTable::Scope scope(table);
    for (int i = 0; i < 3; ++i) seeds.push_back(DrawSeed());
  }
  {
    const SeededRandom seeded(7, c10::kCPU);
    for (int i = 0; i < 3; ++i) plain.push_back(DrawSeed());
  }
  EXPECT_EQ(table.count(), 3u);
  table.Fill();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seeds[i].value, plain[i].value);
    EXPECT_EQ(plain[i].place, nullptr);
    EXPECT_EQ(seeds[i].place, seeds[0].place + i);
    EXPECT_EQ(*seeds[i].place, seeds[i].value);
  }
  {
    const SeededRandom seeded(8, c10::kCPU);
    table.DrawAnew(3);
  }
  const SeededRandom seeded(8, c10::kCPU);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(*seeds[i].place, DrawSeed().value);
}

TEST(SeedTable, SaysWhenItIsFull) {
  SeedTable table(c10::kCPU);
  const SeedTable::Scope scope(table);
  for (std::size_t i = 0; i < SeedTable::kCapacity; ++i) DrawSeed();
  EXPECT_THROW(DrawSeed(), UnsupportedError);
}

}  // namespace
}  // namespace ullage::torchx
