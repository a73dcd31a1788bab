// State on disk: which bytes lie where, and in which parts.
#include "plan/disk_layout.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "plan/cases.h"

namespace ullage::plan {
namespace {

layout::ParameterSpec Spec(std::int64_t numel, DType dtype, bool trainable = true) {
  return {"p", {numel}, numel, dtype, trainable};
}

Plan PlanOf(const Case& c, const Settings& settings) {
  return MakePlan(settings,
                  {Spec(240, c.dtype), Spec(0, c.dtype), Spec(700, c.dtype),
                   Spec(81, c.dtype, /*trainable=*/false), Spec(1, c.dtype)},
                  {.world_size = c.world_size});
}

std::int64_t SumOverRanks(const Plan& plan, Tag tag, Tier tier) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < plan.world_size; ++rank) sum += Of(plan.BytesOfRank(rank, tier), tag);
  return sum;
}

TEST(DiskLayout, AnOptimizerOnDiskHasItsGradientsAndACopyOfTheWeightsOnTheHost) {
  for (const Case& c : Cases(1)) {
    Settings settings = SettingsOf(c);
    settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
    const Plan host = PlanOf(c, settings);
    settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
    const Plan plan = PlanOf(c, settings);
    for (const Tag tag : {Tag::kMaster, Tag::kMoments}) {
      EXPECT_EQ(SumOverRanks(plan, tag, Tier::kDisk), SumOverRanks(host, tag));
      EXPECT_EQ(SumOverRanks(plan, tag), SumOverRanks(host, tag));
    }
    for (const Tag tag : {Tag::kWeights, Tag::kGradients}) {
      EXPECT_EQ(SumOverRanks(plan, tag, Tier::kHost), SumOverRanks(host, tag, Tier::kHost));
      EXPECT_EQ(SumOverRanks(plan, tag, Tier::kDisk), 0);
    }
    EXPECT_EQ(plan.BytesOfRank(0, Tier::kDevice), host.BytesOfRank(0, Tier::kDevice));
    EXPECT_EQ(Of(plan.BytesOfRank(0, Tier::kHost), Tag::kBuckets), plan.disk_slot_bytes);
  }
}

TEST(DiskLayout, TheRatioSaysHowMuchOfTheStateIsOnDiskFromTheEndOfTheModel) {
  std::vector<layout::ParameterSpec> specs;
  for (int i = 0; i < 20; ++i) specs.push_back(Spec(64, DType::kBFloat16));
  for (const bool offload_param : {false, true}) {
    Settings settings = SettingsOf({3, 1, DType::kBFloat16, 1});
    settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
    if (offload_param) settings.zero.offload_param.device = OffloadDevice::kCpu;
    for (const auto& [ratio, units] : {std::pair{0.0, 0}, {0.3, 6}, {0.7, 14}, {1.0, 20}}) {
      settings.zero.offload_optimizer.ratio = ratio;
      const Plan plan = MakePlan(settings, specs, {});
      for (int unit = 0; unit < 20; ++unit) {
        const Tier elsewhere = offload_param ? Tier::kHost : Tier::kDevice;
        EXPECT_EQ(plan.units[unit].state_tier(), unit < 20 - units ? elsewhere : Tier::kDisk);
        EXPECT_EQ(plan.units[unit].home, unit < 20 - units ? elsewhere : Tier::kHost);
      }
    }
  }
}

TEST(DiskLayout, StateOnDiskIsLaidOutInPartsThatBeginAtGrains) {
  for (const Case& c : Cases(1)) {
    Settings settings = SettingsOf(c);
    settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
    Plan plan = PlanOf(c, settings);
    for (const std::int64_t part_numel : {std::int64_t{64}, plan.disk_part_numel}) {
      plan.disk_part_numel = part_numel;
      const DiskLayout layout = MakeDiskLayout(plan);
      std::int64_t end = 0, elements = 0;
      for (const DiskPart& part : layout.parts) {
        EXPECT_EQ(part.offset, end);
        EXPECT_EQ(part.offset % kDiskGrain, 0);
        EXPECT_GT(part.end, part.begin);
        EXPECT_LE(part.end - part.begin, part_numel);
        EXPECT_GE(part.bytes, (part.end - part.begin) * (8 + MasterExtensionBytes(c.dtype)));
        EXPECT_EQ(&part - layout.parts.data(),
                  static_cast<std::ptrdiff_t>(layout.first[part.unit]) + part.begin / part_numel);
        end = part.offset + part.bytes;
        elements += part.end - part.begin;
      }
      EXPECT_EQ(layout.bytes, end);
      std::int64_t planned = 0, held = 0;
      for (const std::int64_t bytes : plan.BytesOfRank(0, Tier::kDisk)) planned += bytes;
      for (std::size_t u = 0; u < plan.units.size(); ++u) {
        if (plan.units[u].unit.trainable) held += plan.HeldNumel(static_cast<int>(u));
      }
      EXPECT_EQ(planned, layout.bytes);
      EXPECT_EQ(elements, held);
    }
  }
}

TEST(DiskLayout, AnOptimizerWithoutStateHasNothingOnDisk) {
  Settings settings = SettingsOf({1, 1, DType::kFloat32, 1});
  settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
  settings.optimizer.type = OptimizerType::kSgd;
  const Plan plan = PlanOf({1, 1, DType::kFloat32, 1}, settings);
  EXPECT_EQ(plan.disk_part_numel, 0);
  EXPECT_EQ(plan.disk_slot_bytes, 0);
  EXPECT_EQ(plan.BytesOfRank(0, Tier::kDisk), TagBytes{});
}

}  // namespace
}  // namespace ullage::plan
