#include "config/nearest_key.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/key_table.h"

namespace ullage::config {
namespace {

std::string Nearest(std::string_view written) {
  std::vector<std::string_view> paths;
  for (const KeyInfo* key : AllKeys()) paths.push_back(key->path);
  return NearestKey(written, paths);
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("stage", ""), 5u);
  EXPECT_EQ(EditDistance("stage", "stage"), 0u);
  EXPECT_EQ(EditDistance("stage", "stages"), 1u);
  EXPECT_EQ(EditDistance("stage", "stge"), 1u);
  EXPECT_EQ(EditDistance("stage", "stake"), 1u);
  EXPECT_EQ(EditDistance("stage", "satge"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(NearestKey, FindsASlipOfTheFinger) {
  EXPECT_EQ(Nearest("gradient_clipp1ng"), "gradient_clipping");
  EXPECT_EQ(Nearest("fp16.lossscale"), "fp16.loss_scale");
  EXPECT_EQ(Nearest("zero_optimization.stag"), "zero_optimization.stage");
  EXPECT_EQ(Nearest("zero_optimisation"), "zero_optimization");
  EXPECT_EQ(Nearest("TRAIN_BATCH_SIZE"), "train_batch_size");
}

TEST(NearestKey, SearchesAcrossLevels) {
  EXPECT_EQ(Nearest("zero_stage"), "zero_optimization.stage");
  EXPECT_EQ(Nearest("stage"), "zero_optimization.stage");
  EXPECT_EQ(Nearest("lr"), "optimizer.params.lr");
  EXPECT_EQ(Nearest("optimizer.lr"), "optimizer.params.lr");
  EXPECT_EQ(Nearest("zero_optimization.gradient_clipping"), "gradient_clipping");
  EXPECT_EQ(Nearest("unit_size"), "ullage.unit_size");
  EXPECT_EQ(Nearest("device_memory"), "ullage.device_memory");
}

TEST(NearestKey, FindsALongNameByItsWords) {
  EXPECT_EQ(Nearest("micro_batch_size"), "train_micro_batch_size_per_gpu");
  EXPECT_EQ(Nearest("batch_size"), "train_batch_size");
  EXPECT_EQ(Nearest("accumulation_steps"), "gradient_accumulation_steps");
  EXPECT_EQ(Nearest("zero_optimization.prefetch_size"), "zero_optimization.prefetch_bucket_size");
}

TEST(NearestKey, KnowsWhatPeopleCallItElsewhere) {
  EXPECT_EQ(Nearest("learning_rate"), "optimizer.params.lr");
  EXPECT_EQ(Nearest("per_device_train_batch_size"), "train_micro_batch_size_per_gpu");
}

TEST(NearestKey, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(Nearest("xyzzy"), "");
  EXPECT_EQ(Nearest(std::string(100'000, 'a')), "");
  EXPECT_EQ(Nearest(""), "");
}

TEST(NearestWord, IgnoresCase) {
  const std::vector<std::string_view> names = {"Adam", "AdamW", "SGD"};
  EXPECT_EQ(NearestWord("adamww", names), "AdamW");
  EXPECT_EQ(NearestWord("sdg", names), "SGD");
  EXPECT_EQ(NearestWord("momentum", names), "");
}

}  // namespace
}  // namespace ullage::config
