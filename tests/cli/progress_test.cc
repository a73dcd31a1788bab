#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ullage::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepNumbers Step(std::int64_t number, double loss, double clip_coef) {
  StepNumbers step;
  step.step = number;
  step.epoch = 0.5;
  step.loss = loss;
  step.lr = 1e-3;
  step.grad_norm = 2;
  step.clip_coef = clip_coef;
  step.applied = true;
  step.tokens = 500;
  step.ms = 250;
  return step;
}

TEST(Progress, ALineIsDueEverySoManyStepsAndAtTheEnd) {
  const Progress progress(25, 10);
  EXPECT_FALSE(progress.IsDue(9));
  EXPECT_TRUE(progress.IsDue(10));
  EXPECT_FALSE(progress.IsDue(21));
  EXPECT_TRUE(progress.IsDue(25));
}

TEST(Progress, ALineTellsTheMeanSinceTheLastOneAndTheTimeLeft) {
  Progress progress(322, 2);
  MemoryReport memory;
  memory.peak_total = 3 << 20;
  progress.Add(Step(1, 1.0, 1), {});
  progress.Add(Step(2, 0.5, 0.5), {.forward = 100});
  const std::string line = progress.Line(memory, 1 << 30);
  EXPECT_THAT(line, HasSubstr("step 2/322  epoch 0.50  loss 0.7500  lr 0.001  grad norm 2 "
                              "(clipped by 0.5)  2000 tokens/s  engine 3.00 MiB  RSS 1.00 GiB"));
  EXPECT_THAT(line, HasSubstr("1m20s left"));
  EXPECT_THAT(progress.TimesLine(), HasSubstr("forward 50.0"));
  progress.Add(Step(3, 0.25, 1), {});
  EXPECT_THAT(progress.Line(memory, 0), HasSubstr("loss 0.2500"));
}

TEST(Progress, AnUnclippedStepSaysNothingOfClipping) {
  Progress progress(10, 1);
  progress.Add(Step(1, 1, 1), {});
  EXPECT_THAT(progress.Line({}, 0), Not(HasSubstr("clipped")));
}

TEST(Progress, ASkippedStepNamesTheParameterAndTheScale) {
  StepNumbers step = Step(4, 1, 1);
  step.overflowed = "bert.pooler.dense.weight";
  step.loss_scale = 65536;
  EXPECT_EQ(SkippedLine(step),
            "step 4 skipped: the gradient of bert.pooler.dense.weight is inf or nan (loss scale "
            "65536)");
}

TEST(Progress, DurationsAreShort) {
  EXPECT_EQ(FormatDuration(0.4), "0s");
  EXPECT_EQ(FormatDuration(59.6), "1m00s");
  EXPECT_EQ(FormatDuration(200), "3m20s");
  EXPECT_EQ(FormatDuration(3725), "1h02m");
}

}  // namespace
}  // namespace ullage::cli
