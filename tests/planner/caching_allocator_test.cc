// The model of torch's caching allocator, on sequences whose outcome follows from its rules.
#include "memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ullage::memory {
namespace {

constexpr std::int64_t kKiB = 1 << 10;
constexpr std::int64_t kMiB = 1 << 20;

TEST(CachingAllocator, RoundsRequestsAndSharesSmallSegments) {
  CachingAllocator allocator;
  allocator.Allocate(1);
  allocator.Allocate(513);
  EXPECT_EQ(allocator.allocated(), 512 + 1024);
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
}

TEST(CachingAllocator, LargeRequestsTakeWholeSegments) {
  CachingAllocator allocator;
  allocator.Allocate(3 * kMiB);                // of a segment of 20 MiB
  allocator.Allocate(17 * kMiB + 512 * kKiB);  // has no room beside it
  EXPECT_EQ(allocator.reserved(), 20 * kMiB + 18 * kMiB);
  // 512 KiB are left of the 18 MiB after 17.5: not worth splitting off, so they are given out too.
  CachingAllocator other;
  other.Allocate(17 * kMiB + 512 * kKiB);
  EXPECT_EQ(other.allocated(), 18 * kMiB);
}

TEST(CachingAllocator, FreedNeighboursBecomeOne) {
  CachingAllocator allocator;
  const auto a = allocator.Allocate(5 * kMiB);
  const auto b = allocator.Allocate(5 * kMiB);
  allocator.Allocate(8 * kMiB);
  allocator.Free(a);
  allocator.Free(b);
  allocator.Allocate(9 * kMiB);
  EXPECT_EQ(allocator.reserved(), 20 * kMiB);
}

TEST(CachingAllocator, HolesCostASegmentUnlessItGrows) {
  const auto reserved = [](bool growing) {
    CachingAllocator allocator({.growing_segments = growing});
    std::vector<CachingAllocator::Id> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(allocator.Allocate(40 * kMiB));
    for (int i = 0; i < 8; ++i) allocator.Free(blocks[static_cast<std::size_t>(i)]);
    allocator.Allocate(320 * kMiB);
    return allocator.reserved();
  };
  EXPECT_EQ(reserved(false), 640 * kMiB);
  EXPECT_EQ(reserved(true), 320 * kMiB);
}

TEST(CachingAllocator, AGrowingSegmentGrowsInSteps) {
  CachingAllocator allocator({.growing_segments = true, .large_segment = 12 * kMiB});
  allocator.Allocate(13 * kMiB);
  EXPECT_EQ(allocator.reserved(), 24 * kMiB);
  allocator.Allocate(11 * kMiB);
  EXPECT_EQ(allocator.reserved(), 24 * kMiB);
  const auto last = allocator.Allocate(2 * kMiB);
  EXPECT_EQ(allocator.reserved(), 36 * kMiB);
  allocator.Free(last);
  allocator.Allocate(20 * kMiB);  // 12 free at the end, and one more step
  EXPECT_EQ(allocator.reserved(), 48 * kMiB);
}

TEST(CachingAllocator, GivesBackAllThatItGave) {
  std::mt19937_64 random(7);
  for (const bool growing : {false, true}) {
    CachingAllocator allocator({.growing_segments = growing});
    std::vector<CachingAllocator::Id> held;
    for (int i = 0; i < 4000; ++i) {
      if (held.empty() || random() % 2 == 0) {
        held.push_back(allocator.Allocate(static_cast<std::int64_t>(random() % (64 * kMiB)) + 1));
      } else {
        const std::size_t at = random() % held.size();
        allocator.Free(held[at]);
        held[at] = held.back();
        held.pop_back();
      }
      ASSERT_LE(allocator.allocated(), allocator.reserved());
    }
    for (const auto id : held) allocator.Free(id);
    EXPECT_EQ(allocator.allocated(), 0);
  }
}

}  // namespace
}  // namespace ullage::memory
