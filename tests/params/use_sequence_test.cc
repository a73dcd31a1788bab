// What was used in one step is expected in the next.
#include "params/use_sequence.h"

#include <gtest/gtest.h>

#include <limits>

namespace ullage::params {
namespace {

std::vector<int> Expected(const UseSequence& uses,
                          std::size_t most = std::numeric_limits<std::size_t>::max()) {
  std::vector<int> units;
  uses.ForExpected([&](int unit) {
    units.push_back(unit);
    return units.size() < most;
  });
  return units;
}

UseSequence After(const std::vector<int>& units) {
  UseSequence uses;
  for (const int unit : units) uses.Use(unit);
  uses.Restart();
  return uses;
}

TEST(UseSequence, ExpectsNothingInTheFirstStep) {
  UseSequence uses;
  for (const int unit : {0, 1, 2}) uses.Use(unit);
  EXPECT_EQ(Expected(uses), std::vector<int>());
}

TEST(UseSequence, ExpectsTheUsesOfTheStepBeforeInTheirOrder) {
  UseSequence uses = After({0, 1, 2, 1, 0});
  EXPECT_EQ(Expected(uses), (std::vector<int>{0, 1, 2, 1, 0}));
  uses.Use(0);
  EXPECT_EQ(Expected(uses), (std::vector<int>{1, 2, 1, 0}));
  uses.Use(1);
  uses.Use(2);
  EXPECT_EQ(Expected(uses), (std::vector<int>{1, 0}));
  uses.Use(1);
  uses.Use(0);
  EXPECT_EQ(Expected(uses), std::vector<int>());
}

TEST(UseSequence, CountsUsesInARowOnce) {
  UseSequence uses = After({3, 3, 3, 4, 4, 3});
  EXPECT_EQ(Expected(uses), (std::vector<int>{3, 4, 3}));
  uses.Use(3);
  uses.Use(3);  // the same use, not the one after unit 4
  EXPECT_EQ(Expected(uses), (std::vector<int>{4, 3}));
}

TEST(UseSequence, GoesOnBehindAUnitThatCameEarlierThanExpected) {
  UseSequence uses = After({0, 1, 2, 3});
  uses.Use(2);
  EXPECT_EQ(Expected(uses), std::vector<int>{3});
}

TEST(UseSequence, StaysWhereItIsAfterAUnitThatWasNotExpected) {
  UseSequence uses = After({0, 1, 2});
  uses.Use(0);
  uses.Use(7);
  EXPECT_EQ(Expected(uses), (std::vector<int>{1, 2}));
}

TEST(UseSequence, ForgetsTheStepBeforeTheLast) {
  UseSequence uses = After({0, 1, 2});
  uses.Use(2);
  uses.Use(5);
  uses.Restart();
  EXPECT_EQ(Expected(uses), (std::vector<int>{2, 5}));
  uses.Restart();
  EXPECT_EQ(Expected(uses), std::vector<int>());
}

TEST(UseSequence, StopsWhenEnoughWasTaken) {
  const UseSequence uses = After({0, 1, 2, 3});
  EXPECT_EQ(Expected(uses, 2), (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace ullage::params
