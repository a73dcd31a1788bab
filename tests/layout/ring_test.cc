#include "layout/ring.h"

#include <gtest/gtest.h>

namespace ullage::layout {
namespace {

const auto kNonePinned = [](int) { return false; };

TEST(Ring, PlacesInTurnAndEvictsTheOldest) {
  Ring ring(100);
  EXPECT_EQ(ring.Place(0, 40, kNonePinned)->offset, 0);
  EXPECT_EQ(ring.Place(1, 40, kNonePinned)->offset, 40);
  const auto third = ring.Place(2, 30, kNonePinned);
  EXPECT_EQ(third->offset, 0);
  EXPECT_EQ(third->evicted, std::vector<int>{0});
  const auto fourth = ring.Place(3, 30, kNonePinned);
  EXPECT_EQ(fourth->offset, 30);
  EXPECT_EQ(fourth->evicted, std::vector<int>{1});
}

TEST(Ring, StepsOverPinnedUnits) {
  Ring ring(100);
  ring.Place(0, 40, kNonePinned);
  ring.Place(1, 20, kNonePinned);
  const auto placement = ring.Place(2, 50, [](int unit) { return unit == 0; });
  EXPECT_EQ(placement->offset, 40);
  EXPECT_EQ(placement->evicted, std::vector<int>{1});
}

TEST(Ring, RefusesWhatPinnedUnitsLeaveNoRoomFor) {
  Ring ring(100);
  ring.Place(0, 30, kNonePinned);
  ring.Place(1, 30, kNonePinned);
  EXPECT_FALSE(ring.Place(2, 50, [](int unit) { return unit == 1; }).has_value());
  EXPECT_FALSE(ring.Place(2, 101, kNonePinned).has_value());
  EXPECT_TRUE(ring.Place(2, 40, [](int unit) { return unit == 1; }).has_value());
}

TEST(Ring, FillsItselfExactly) {
  Ring ring(100);
  EXPECT_EQ(ring.Place(0, 100, kNonePinned)->offset, 0);
  const auto next = ring.Place(1, 100, kNonePinned);
  EXPECT_EQ(next->offset, 0);
  EXPECT_EQ(next->evicted, std::vector<int>{0});
}

TEST(Ring, ForgetsRemovedUnits) {
  Ring ring(10);
  ring.Place(0, 10, kNonePinned);
  ring.Remove(0);
  EXPECT_TRUE(ring.Place(1, 10, [](int unit) { return unit == 0; })->evicted.empty());
}

}  // namespace
}  // namespace ullage::layout
