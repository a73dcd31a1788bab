#include "optim/loss_scale.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage::optim {
namespace {

// The scales that the steps use whose verdicts are given.
std::vector<double> ScalesUsed(LossScaler& scaler, const std::vector<bool>& overflows) {
  std::vector<double> scales;
  for (const bool overflow : overflows) {
    scales.push_back(scaler.scale());
    scaler.Update(overflow);
  }
  return scales;
}

LossScaleSettings Small() {
  return {.initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 2, .min_loss_scale = 1};
}

TEST(LossScaler, StartsAtTwoToThePower) {
  EXPECT_EQ(LossScaler(LossScaleSettings{}).scale(), 65536);
  EXPECT_EQ(LossScaler(Small()).scale(), 16);
}

TEST(LossScaler, HalvesDownToTheLeastAndThenFails) {
  LossScaler scaler(Small());
  EXPECT_EQ(ScalesUsed(scaler, {true, true, true, true, true}),
            (std::vector<double>{16, 16, 8, 4, 2}));
  EXPECT_EQ(scaler.scale(), 1);
  try {
    scaler.Update(true);
    ADD_FAILURE() << "a sixth overflow was accepted";
  } catch (const StateError& error) {
    EXPECT_EQ(std::string(error.what())
                  .find("gradients overflow at the smallest loss scale, 1 (fp16.min_loss_scale), "
                        "at step 6\nhint: "),
              0u)
        << error.what();
  }
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(LossScaler, StopsAtALeastScaleThatIsNoPowerOfTwo) {
  LossScaleSettings settings = Small();
  settings.min_loss_scale = 3;
  settings.hysteresis = 1;
  LossScaler scaler(settings);
  EXPECT_EQ(ScalesUsed(scaler, {true, true, true}), (std::vector<double>{16, 8, 4}));
  EXPECT_EQ(scaler.scale(), 3);
  EXPECT_THROW(scaler.Update(true), StateError);
}

TEST(LossScaler, DoublesAfterGoodStepWindowPlusOneAndEachWindowFromThere) {
  LossScaler scaler(Small());
  EXPECT_EQ(ScalesUsed(scaler, {false, false, false, false, false, false}),
            (std::vector<double>{16, 16, 16, 32, 32, 64}));
}

TEST(LossScaler, CountsTheWindowFromTheLastOverflow) {
  LossScaleSettings settings = Small();
  settings.hysteresis = 1;
  LossScaler scaler(settings);
  EXPECT_EQ(ScalesUsed(scaler, {false, false, true, false, false, false, false}),
            (std::vector<double>{16, 16, 16, 8, 8, 8, 16}));
}

TEST(LossScaler, GoodStepsDoNotRefillTheToleranceUntilTheScaleDoubles) {
  LossScaler scaler(Small());
  EXPECT_EQ(ScalesUsed(scaler, {true, false, true, false}), (std::vector<double>{16, 16, 16, 8}));
  // Two more good steps double the scale, and the next overflow is tolerated again.
  EXPECT_EQ(ScalesUsed(scaler, {false, false, true, true}), (std::vector<double>{8, 8, 16, 16}));
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, ConsecutiveHysteresisRefillsTheToleranceAtEachGoodStep) {
  LossScaleSettings settings = Small();
  settings.consecutive_hysteresis = true;
  LossScaler scaler(settings);
  EXPECT_EQ(ScalesUsed(scaler, {true, false, true, false, true, true}),
            (std::vector<double>{16, 16, 16, 16, 16, 16}));
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, AConstantScaleNeverChanges) {
  LossScaler scaler(LossScaleSettings{.loss_scale = 128});
  EXPECT_EQ(ScalesUsed(scaler, std::vector<bool>(50, true)), std::vector<double>(50, 128));
  EXPECT_EQ(ScalesUsed(scaler, std::vector<bool>(50, false)), std::vector<double>(50, 128));
}

TEST(LossScaler, NeverGrowsBeyondWhatFp32Holds) {
  LossScaleSettings settings = Small();
  settings.loss_scale_window = 1;
  LossScaler scaler(settings);
  for (int i = 0; i < 300; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

TEST(LossScaler, ContinuesFromItsStateAsIfUnbroken) {
  LossScaler unbroken(Small());
  ScalesUsed(unbroken, {false, true, false});
  LossScaler resumed(Small());
  resumed.set_state(unbroken.state());
  const std::vector<bool> rest = {false, false, true, false, true, true, false, false, false};
  EXPECT_EQ(ScalesUsed(resumed, rest), ScalesUsed(unbroken, rest));
  EXPECT_EQ(resumed.state(), unbroken.state());
}

TEST(LossScaler, AConstantScaleOfTheSettingsWinsOverAState) {
  LossScaler scaler(LossScaleSettings{.loss_scale = 64});
  scaler.set_state({.scale = 2, .iteration = 5, .last_overflow = 1, .hysteresis_left = 1});
  EXPECT_EQ(scaler.scale(), 64);
}

TEST(LossScaler, RefusesAStateThatCannotBe) {
  LossScaler scaler(Small());
  const LossScaleState good = {
      .scale = 8, .iteration = 3, .last_overflow = 2, .hysteresis_left = 1};
  EXPECT_NO_THROW(scaler.set_state(good));
  std::vector<LossScaleState> bad(6, good);
  bad[0].scale = 0;
  bad[1].scale = std::nan("");
  bad[2].iteration = -1;
  bad[3].last_overflow = 3;
  bad[4].last_overflow = -2;
  bad[5].hysteresis_left = 0;
  for (const LossScaleState& state : bad) EXPECT_THROW(scaler.set_state(state), StateError);
  EXPECT_EQ(scaler.state(), good);
}

}  // namespace
}  // namespace ullage::optim
