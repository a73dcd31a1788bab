#include <optional>

#include <gtest/gtest.h>

#include "expect_error.h"
#include "ullage/settings.h"

namespace ullage {
namespace {

using Count = std::optional<std::int64_t>;

Settings WithBatches(Count train, Count micro, Count accumulation) {
  Settings settings;
  settings.train_batch_size = train;
  settings.train_micro_batch_size_per_gpu = micro;
  settings.gradient_accumulation_steps = accumulation;
  return settings;
}

void ExpectSizes(const BatchSizes& sizes, std::int64_t train, std::int64_t micro,
                 std::int64_t accumulation) {
  EXPECT_EQ(sizes.train_batch, train);
  EXPECT_EQ(sizes.micro_batch, micro);
  EXPECT_EQ(sizes.accumulation_steps, accumulation);
}

std::string Refusal(Count train, Count micro, Count accumulation, int world_size) {
  try {
    WithBatches(train, micro, accumulation).ResolveBatchSizes(world_size);
  } catch (const ConfigError& error) {
    return config::FirstLine(error.what());
  }
  return "accepted";
}

constexpr std::nullopt_t kAbsent = std::nullopt;

TEST(BatchSizes, AllThreeAreOnlyChecked) {
  ExpectSizes(WithBatches(32, 16, 1).ResolveBatchSizes(2), 32, 16, 1);
  ExpectSizes(WithBatches(32, 8, 2).ResolveBatchSizes(2), 32, 8, 2);
}

TEST(BatchSizes, AnyTwoGiveTheThird) {
  ExpectSizes(WithBatches(32, 16, kAbsent).ResolveBatchSizes(2), 32, 16, 1);
  ExpectSizes(WithBatches(32, 8, kAbsent).ResolveBatchSizes(2), 32, 8, 2);
  ExpectSizes(WithBatches(32, kAbsent, 2).ResolveBatchSizes(2), 32, 8, 2);
  ExpectSizes(WithBatches(kAbsent, 8, 2).ResolveBatchSizes(2), 32, 8, 2);
}

TEST(BatchSizes, OneAloneMeansOneMicroStep) {
  ExpectSizes(WithBatches(32, kAbsent, kAbsent).ResolveBatchSizes(2), 32, 16, 1);
  ExpectSizes(WithBatches(kAbsent, 16, kAbsent).ResolveBatchSizes(2), 32, 16, 1);
}

TEST(BatchSizes, ThoseThatDoNotFitPrintTheProduct) {
  EXPECT_EQ(Refusal(33, 17, 2, 2),
            "batch sizes do not fit: train_batch_size 33 != train_micro_batch_size_per_gpu 17 * "
            "gradient_accumulation_steps 2 * 2 ranks = 68");
  EXPECT_EQ(Refusal(32, 18, 1, 2),
            "batch sizes do not fit: train_batch_size 32 != train_micro_batch_size_per_gpu 18 * "
            "gradient_accumulation_steps 1 * 2 ranks = 36");
}

TEST(BatchSizes, AnIndivisiblePairPrintsWhatWasDerived) {
  EXPECT_EQ(Refusal(33, 16, kAbsent, 2),
            "batch sizes do not fit: train_batch_size 33 != train_micro_batch_size_per_gpu 16 * "
            "gradient_accumulation_steps 1 (derived) * 2 ranks = 32");
  EXPECT_EQ(Refusal(33, kAbsent, 2, 2),
            "batch sizes do not fit: train_batch_size 33 != train_micro_batch_size_per_gpu 8 "
            "(derived) * gradient_accumulation_steps 2 * 2 ranks = 32");
  EXPECT_EQ(Refusal(33, kAbsent, kAbsent, 2),
            "batch sizes do not fit: train_batch_size 33 != train_micro_batch_size_per_gpu 16 "
            "(derived) * gradient_accumulation_steps 1 (derived) * 2 ranks = 32");
}

TEST(BatchSizes, ABatchSmallerThanTheRanksIsRefused) {
  EXPECT_EQ(Refusal(2, kAbsent, kAbsent, 4),
            "batch sizes do not fit: train_batch_size 2 != train_micro_batch_size_per_gpu 0 "
            "(derived) * gradient_accumulation_steps 1 (derived) * 4 ranks = 0");
}

TEST(BatchSizes, AccumulationAloneIsRefused) {
  EXPECT_EQ(Refusal(kAbsent, kAbsent, 4, 2),
            "neither train_batch_size nor train_micro_batch_size_per_gpu is given");
  EXPECT_EQ(Refusal(kAbsent, kAbsent, kAbsent, 2),
            "neither train_batch_size nor train_micro_batch_size_per_gpu is given");
}

TEST(BatchSizes, CountsBelowOneAreRefused) {
  EXPECT_EQ(Refusal(kAbsent, 0, kAbsent, 2),
            "train_micro_batch_size_per_gpu: 0 is not allowed; allowed: an integer of at least 1");
  EXPECT_EQ(Refusal(8, 1, -1, 2),
            "gradient_accumulation_steps: -1 is not allowed; allowed: an integer of at least 1");
  EXPECT_EQ(Refusal(8, kAbsent, kAbsent, 0), "0 ranks: allowed: an integer of at least 1");
}

TEST(BatchSizes, AProductBeyond63BitsIsRefused) {
  const std::string message = Refusal(kAbsent, INT64_C(1) << 62, INT64_C(1) << 62, 2);
  EXPECT_NE(message.find("= more than 63 bits hold"), std::string::npos) << message;
}

}  // namespace
}  // namespace ullage
