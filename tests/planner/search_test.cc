// The fastest way that fits, on an imagined device.
#include "planner/search.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "../models/tiny_llama.h"
#include "ullage/error.h"

namespace ullage::planner {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class Search : public testing::Test {
 protected:
  Search() : path_(testing::TempDir() + "search_config.json") {
    nlohmann::json config = models::TinyLlamaConfig();
    config["hidden_size"] = 512;
    config["intermediate_size"] = 1024;
    config["num_attention_heads"] = 8;
    config["num_key_value_heads"] = 8;
    config["num_hidden_layers"] = 4;
    config["vocab_size"] = 2048;
    config["max_position_embeddings"] = 512;
    std::ofstream(path_) << config.dump();
  }

  Job JobOf(const std::string& more = "", int ranks = 1) const {
    Job job;
    job.model = path_;
    job.settings = Settings::FromText("{\"train_batch_size\": " + std::to_string(16 * ranks) +
                                      ", \"bf16\": {\"enabled\": true}" + more + "}");
    job.ranks = ranks;
    job.sequence = 512;
    job.cuda = true;
    job.device = FindDevice("h200");
    return job;
  }

  const std::string path_;
};

TEST_F(Search, KeysThatWereGivenAreNotFree) {
  const Freedom all = LeftOpen(JobOf().settings);
  EXPECT_TRUE(all.micro_batch && all.recompute && all.stage && all.offload);
  const Freedom none = LeftOpen(JobOf(R"(, "train_micro_batch_size_per_gpu": 4,
      "ullage": {"recompute": "none"},
      "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}})")
                                    .settings);
  EXPECT_FALSE(none.micro_batch || none.recompute || none.stage || none.offload);
  EXPECT_FALSE(LeftOpen(JobOf(R"(, "gradient_accumulation_steps": 2)").settings).micro_batch);
}

TEST_F(Search, WithRoomNothingChanges) {
  const Job job = JobOf();
  const Found found = FindFastest(job, LeftOpen(job.settings), job.device.memory);
  ASSERT_TRUE(found.best);
  EXPECT_EQ(ChangeText(job, found.best->job), "");
}

// From what the fastest needs down to where nothing fits: each choice fits, keeps the batch, and is
// no faster than what more memory gave.
TEST_F(Search, LessMemoryIsNeverFasterAndAlwaysFits) {
  const Job job = JobOf();
  const MemoryPrediction roomy = Predict(job);
  double before = 0;
  std::int64_t capacity = roomy.device();
  int found_count = 0;
  for (; capacity > job.device.outside; capacity -= 24 * kMiB) {
    const Found found = FindFastest(job, LeftOpen(job.settings), capacity);
    if (!found.best) {
      EXPECT_FALSE(found.refused.empty());
      break;
    }
    ++found_count;
    const MemoryPrediction& prediction = found.best->prediction;
    EXPECT_LE(prediction.device(), capacity);
    EXPECT_GE(prediction.time->total(), before * 0.999) << capacity / kMiB;
    before = prediction.time->total();
    EXPECT_EQ(found.best->job.settings.ResolveBatchSizes(1).train_batch, 16);
    // What it says is what a dry run of the job that it gives says again.
    const MemoryPrediction again = Predict(found.best->job);
    EXPECT_EQ(again.device(), prediction.device());
  }
  EXPECT_GT(found_count, 5);
  EXPECT_GT(before, 1.05 * roomy.time->total());
}

TEST_F(Search, WhatIsNotFreeStays) {
  const Job job = JobOf(R"(, "train_micro_batch_size_per_gpu": 16,
      "ullage": {"recompute": "none"})");
  Freedom freedom = LeftOpen(job.settings);
  freedom.offload = false;
  const std::int64_t needed = Predict(job).device();
  EXPECT_FALSE(FindFastest(job, freedom, needed - 1).best);
  EXPECT_TRUE(FindFastest(job, freedom, needed).best);
}

TEST_F(Search, RanksShareWhatOneCannotHold) {
  const Job job = JobOf("", 4);
  Freedom freedom = LeftOpen(job.settings);
  freedom.offload = false;
  const std::int64_t needed = Predict(job).device();
  const Found found = FindFastest(job, freedom, needed - 16 * kMiB);
  ASSERT_TRUE(found.best);
  EXPECT_NE(ChangeText(job, found.best->job), "");
  EXPECT_LE(found.best->prediction.device(), needed - 16 * kMiB);
}

TEST_F(Search, RecomputedBlocksTakeLonger) {
  Job job = JobOf(R"(, "ullage": {"cuda_graphs": "off"})");
  const MemoryPrediction kept = Predict(job);
  job.settings.recompute = true;
  const MemoryPrediction recomputed = Predict(job);
  EXPECT_GT(recomputed.time->backward, 1.2 * kept.time->backward);
  EXPECT_LT(recomputed.device(), kept.device());
}

}  // namespace
}  // namespace ullage::planner
