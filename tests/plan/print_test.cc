// The printed forms of a plan.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/plan.h"

namespace ullage::plan {
namespace {

Plan SmallPlan(int world_size) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = 3;
  settings.zero.param_persistence_threshold = 20;
  settings.ullage.unit_size = 1;
  settings.precision = Precision::kBFloat16;
  settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
  settings.zero.offload_optimizer.ratio = 0.5;
  return MakePlan(settings,
                  {{"encoder.weight", {20, 10}, 200, DType::kBFloat16},
                   {"encoder.bias", {10}, 10, DType::kBFloat16},
                   {"table", {64}, 64, DType::kBFloat16, false}},
                  {.world_size = world_size});
}

TEST(Print, JsonHoldsEveryNumberOfThePlan) {
  Plan plan = SmallPlan(2);
  plan.prefetch_bytes = 128;
  plan.landing_bytes = 64;
  plan.crossing_bytes = 32;
  const auto json = nlohmann::json::parse(plan.ToJson());
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["stage"], 3);
  EXPECT_EQ(json["weight_dtype"], "bf16");
  EXPECT_EQ(json["ring_bytes"], plan.ring_bytes);
  EXPECT_EQ(json["prefetch_bytes"], 128);
  EXPECT_EQ(json["landing_bytes"], 64);
  EXPECT_EQ(json["crossing_bytes"], 32);
  EXPECT_EQ(json["staging_ring_bytes"], plan.staging_ring_bytes);
  EXPECT_EQ(json["own_staging_bytes"], plan.own_staging_bytes);
  EXPECT_EQ(json["bucket_numel"], plan.bucket_numel);
  ASSERT_EQ(json["bytes_per_rank"].size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const TagBytes bytes = plan.BytesOfRank(rank);
    for (std::size_t tag = 0; tag < kTagCount; ++tag) {
      EXPECT_EQ(json["bytes_per_rank"][rank][std::string(kTagNames[tag])], bytes[tag]);
    }
  }
  ASSERT_EQ(json["units"].size(), 3u);
  EXPECT_EQ(json["units"][0]["weights"], "slice");
  EXPECT_EQ(json["units"][0]["state"], "slice");
  EXPECT_EQ(json["units"][0]["resident"], false);
  EXPECT_EQ(json["units"][0]["home"], "device");
  EXPECT_EQ(json["units"][0]["slice_numel"], 128);
  EXPECT_EQ(json["units"][0]["members"][0]["name"], "encoder.weight");
  EXPECT_EQ(json["units"][0]["members"][0]["numel"], 200);
  EXPECT_EQ(json["units"][1]["weights"], "whole");
  EXPECT_EQ(json["units"][1]["resident"], true);
  EXPECT_EQ(json["units"][1]["home"], "host");
  EXPECT_EQ(json["units"][2]["trainable"], false);
  EXPECT_EQ(json["units"][2]["state"], "none");
}

TEST(Print, TextNamesTheModelTheTagsAndTheTotal) {
  const std::string text = SmallPlan(2).ToText();
  for (const char* part :
       {"274 parameters (210 trainable) in 3 units, bf16, ZeRO stage 3 on 2 ranks", "rank 0",
        "rank 1", "weights", "master", "moments", "gradients", "slots", "buckets", "padding",
        "total"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("rank 2"), std::string::npos);
  EXPECT_EQ(text.find("data"), std::string::npos);  // not the plan's
  EXPECT_NE(SmallPlan(1).ToText().find("on 1 rank\n"), std::string::npos);
}

TEST(Print, WhatLiesOnTheHostHasARowOfItsOwn) {
  EXPECT_NE(SmallPlan(2).ToText().find("\non the host "), std::string::npos);
  EXPECT_EQ(SmallPlan(2).ToText().find("on disk"), std::string::npos);
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  const Plan plan = MakePlan(settings, {{"weight", {20, 10}, 200, DType::kFloat32}}, {});
  EXPECT_EQ(plan.ToText().find("on the host"), std::string::npos);
}

TEST(Print, WhatLiesOnDiskHasARowOfItsOwn) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = 1;
  settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
  const Plan plan = MakePlan(settings, {{"weight", {512, 10}, 5120, DType::kFloat32}}, {});
  EXPECT_NE(plan.ToText().find("\non disk           40.0 KiB\n"), std::string::npos)
      << plan.ToText();
  const auto json = nlohmann::json::parse(plan.ToJson());
  EXPECT_EQ(json["units"][0]["state_home"], "disk");
  EXPECT_EQ(json["units"][0]["home"], "host");
  EXPECT_EQ(json["disk_slot_bytes"], plan.disk_slot_bytes);
  EXPECT_EQ(plan.disk_slot_bytes, 4 * 40'960 + 4096);
}

TEST(Print, ManyRanksAreShownByTheFirstOnes) {
  const std::string text = SmallPlan(20).ToText();
  EXPECT_NE(text.find("rank 7"), std::string::npos);
  EXPECT_EQ(text.find("rank 8"), std::string::npos);
  EXPECT_NE(text.find("ranks 8 to 19 likewise"), std::string::npos);
}

TEST(Print, EqualPlansPrintAlike) {
  EXPECT_EQ(SmallPlan(4).ToJson(), SmallPlan(4).ToJson());
  EXPECT_NE(SmallPlan(4).ToJson(), SmallPlan(2).ToJson());
}

}  // namespace
}  // namespace ullage::plan
