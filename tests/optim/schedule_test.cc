#include "optim/schedule.h"

#include <vector>

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage::optim {
namespace {

// The rates that the optimizer's steps 1, 2, 3, ... use.
void ExpectRates(const Schedule& schedule, const std::vector<double>& rates,
                 double tolerance = 5e-5) {
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(schedule.LrAt(static_cast<std::int64_t>(i)), rates[i], tolerance)
        << "step " << i + 1;
  }
}

WarmupLr Warmup(std::int64_t steps, bool logarithmic) {
  return {.min_lr = 0, .max_lr = 1, .warmup_steps = steps, .logarithmic = logarithmic};
}

TEST(Schedule, WithoutASchedulerTheRateIsConstant) {
  const Schedule schedule(std::monostate{}, 0.25);
  ExpectRates(schedule, {0.25, 0.25, 0.25});
  EXPECT_EQ(schedule.LrAt(1'000'000'000), 0.25);
  EXPECT_FALSE(schedule.MomentumAt(0).has_value());
}

TEST(Schedule, WarmupLrRisesLinearlyAfterTwoStepsAtTheLeast) {
  const Schedule schedule(Warmup(10, false), 5);
  ExpectRates(schedule, {0, 0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, 1, 1}, 1e-12);
}

TEST(Schedule, WarmupLrRisesLogarithmicallyAndIsCompleteAtStep11) {
  const Schedule schedule(Warmup(10, true), 5);
  ExpectRates(schedule,
              {0, 0, .30103, .477121, .60206, .69897, .778151, .845098, .90309, .954243, 1, 1, 1},
              5e-7);
}

TEST(Schedule, WarmupLrRisesToTheBaseRateWhenNoneIsGiven) {
  const Schedule schedule(WarmupLr{.min_lr = 0.1, .warmup_steps = 4, .logarithmic = false}, 0.5);
  ExpectRates(schedule, {.1, .1, .2, .3, .4, .5, .5}, 1e-12);
}

TEST(Schedule, AWarmupOfOneStepCountsAsTwo) {
  ExpectRates(Schedule(Warmup(1, true), 1), {0, 0, 1, 1}, 1e-12);
  ExpectRates(Schedule(Warmup(1, false), 1), {0, 0, .5, 1}, 1e-12);
}

TEST(Schedule, WarmupDecayLrRisesAndFallsToZero) {
  const Schedule schedule(WarmupDecayLr{.warmup = Warmup(4, false), .total_steps = 10}, 1);
  ExpectRates(schedule, {0, 0, .25, .5, .75, 1, .8333, .6667, .5, .3333, .1667, 0, 0, 0});
  EXPECT_EQ(schedule.LrAt(1000), 0);
}

TEST(Schedule, WarmupDecayLrFallsToTheLeastRate) {
  WarmupLr warmup = Warmup(2, false);
  warmup.min_lr = 0.2;
  const Schedule schedule(WarmupDecayLr{.warmup = warmup, .total_steps = 4}, 1);
  ExpectRates(schedule, {.2, .2, .6, 1, .6, .2, .2}, 1e-12);
}

TEST(Schedule, WarmupCosineLrFallsAlongACosineToItsFloor) {
  const Schedule schedule(WarmupCosineLr{.total_steps = 6,
                                         .warmup_min_ratio = 0.5,
                                         .warmup_steps = 2,
                                         .cos_min_ratio = 0.1,
                                         .logarithmic = false},
                          2);
  // The first step uses 0 whatever the least ratio is.
  ExpectRates(schedule, {0, 1, 1.5, 2 * .86819805, 2 * .55, 2 * .23180195, 2 * .1, 2 * .1}, 1e-7);
  EXPECT_NEAR(schedule.LrAt(1000), 0.2, 1e-12);
}

TEST(Schedule, WarmupCosineLrRisesLogarithmically) {
  const Schedule schedule(
      WarmupCosineLr{.total_steps = 100, .warmup_steps = 10, .logarithmic = true}, 1);
  ExpectRates(schedule, {0, 0, .30103, .477121, .60206}, 5e-7);
}

OneCycleLr Cycle() {
  OneCycleLr cycle;
  cycle.min_lr = 1;
  cycle.max_lr = 5;
  cycle.first_steps = 4;
  cycle.second_steps = 2;
  return cycle;
}

TEST(Schedule, OneCycleRisesFallsAndStays) {
  ExpectRates(Schedule(Cycle(), 9), {1, 2, 3, 4, 5, 3, 1, 1, 1}, 1e-12);
}

TEST(Schedule, OneCycleFallsAsLongAsItRisesByDefault) {
  OneCycleLr cycle = Cycle();
  cycle.second_steps.reset();
  ExpectRates(Schedule(cycle, 9), {1, 2, 3, 4, 5, 4, 3, 2, 1, 1}, 1e-12);
}

TEST(Schedule, OneCycleDecaysAfterTheCycle) {
  OneCycleLr cycle = Cycle();
  cycle.decay_lr_rate = 1;
  cycle.decay_step_size = 2;
  // Step 8 is the first after the cycle: 1 / (1 + 1 * 1/2).
  ExpectRates(Schedule(cycle, 9), {1, 2, 3, 4, 5, 3, 1, 1 / 1.5, 1 / 2.0, 1 / 2.5}, 1e-12);
}

TEST(Schedule, OneCycleMovesInStairs) {
  OneCycleLr cycle = Cycle();
  cycle.second_steps = 4;
  cycle.first_stairs = 2;
  ExpectRates(Schedule(cycle, 9), {1, 1, 3, 3, 5, 3, 3, 1, 1}, 1e-12);
  cycle.second_stairs = 4;
  ExpectRates(Schedule(cycle, 9), {1, 1, 3, 3, 5, 4, 3, 2, 1}, 1e-12);
}

TEST(Schedule, OneCycleMovesTheMomentumTheOtherWay) {
  OneCycleLr cycle = Cycle();
  cycle.min_momentum = 0.8;
  cycle.max_momentum = 0.9;
  const Schedule schedule(cycle, 9);
  // As written when it is made: the least, although the rate is the least too.
  EXPECT_NEAR(*schedule.MomentumAt(0), 0.8, 1e-12);
  EXPECT_NEAR(*schedule.MomentumAt(1), 0.875, 1e-12);
  EXPECT_NEAR(*schedule.MomentumAt(4), 0.8, 1e-12);
  EXPECT_NEAR(*schedule.MomentumAt(5), 0.85, 1e-12);
  EXPECT_NEAR(*schedule.MomentumAt(6), 0.9, 1e-12);
  EXPECT_NEAR(*schedule.MomentumAt(100), 0.9, 1e-12);
  EXPECT_EQ(Schedule::kCycledBeta2, 0.99);
}

TEST(Schedule, OneCycleDecaysTheMomentumUpwards) {
  OneCycleLr cycle = Cycle();
  cycle.decay_momentum_rate = 0.01;
  cycle.decay_step_size = 2;
  EXPECT_NEAR(*Schedule(cycle, 9).MomentumAt(7), 0.9 * 1.005, 1e-12);
}

TEST(Schedule, OneCycleLeavesTheMomentumAloneWhenTold) {
  OneCycleLr cycle = Cycle();
  cycle.cycle_momentum = false;
  EXPECT_FALSE(Schedule(cycle, 9).MomentumAt(3).has_value());
}

TEST(Schedule, RangeTestRisesFromTheFirstStep) {
  ExpectRates(Schedule(RangeTestLr{.min_lr = 0.5, .step_size = 2, .step_rate = 3}, 9),
              {.5, 1.25, 2, 2.75, 3.5}, 1e-12);
}

TEST(Schedule, RangeTestRisesInStairs) {
  ExpectRates(
      Schedule(RangeTestLr{.min_lr = 0.5, .step_size = 2, .step_rate = 3, .staircase = true}, 9),
      {.5, .5, 2, 2, 3.5}, 1e-12);
}

TEST(Schedule, ANegativeNumberOfStepsIsAnError) {
  EXPECT_THROW(Schedule(std::monostate{}, 1).LrAt(-1), StateError);
  EXPECT_THROW(Schedule(Cycle(), 1).MomentumAt(-1), StateError);
}

}  // namespace
}  // namespace ullage::optim
