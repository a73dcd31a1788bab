// The bytes of a plan are those of the formulas.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "plan/cases.h"

namespace ullage::plan {
namespace {

layout::ParameterSpec Spec(const std::string& name, std::vector<std::int64_t> shape, DType dtype,
                           bool trainable = true) {
  layout::ParameterSpec spec{name, std::move(shape), 1, dtype, trainable};
  for (const std::int64_t size : spec.shape) spec.numel *= size;
  return spec;
}

// 240 + 256 + 16 + 0 + 700 + 1 = 1213 trained elements and 81 frozen ones.
constexpr std::int64_t kTrained = 1213, kFrozen = 81;

std::vector<layout::ParameterSpec> Specs(DType dtype) {
  return {Spec("a", {30, 8}, dtype),  Spec("b", {16, 16}, dtype),
          Spec("c", {16}, dtype),     Spec("none", {0, 3}, dtype),
          Spec("d", {70, 10}, dtype), Spec("frozen", {9, 9}, dtype, false),
          Spec("one", {1}, dtype)};
}

Plan PlanOf(const Case& c, const Settings& settings) {
  return MakePlan(settings, Specs(c.dtype), {.world_size = c.world_size});
}
Plan PlanOf(const Case& c) {
  return PlanOf(c, SettingsOf(c));
}

std::int64_t SumOverRanks(const Plan& plan, Tag tag, Tier tier) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < plan.world_size; ++rank) sum += Of(plan.BytesOfRank(rank, tier), tag);
  return sum;
}

TEST(Plan, WeightsAreSlicedAtStageThreeOnly) {
  for (const Case& c : Cases(0)) {
    const Plan plan = PlanOf(c);
    const std::int64_t all = (kTrained + kFrozen) * ElementBytes(c.dtype);
    EXPECT_EQ(SumOverRanks(plan, Tag::kWeights), c.stage == 3 ? all : c.world_size * all);
  }
}

TEST(Plan, MasterAndMomentsAreSlicedFromStageOneOn) {
  for (const Case& c : Cases(0)) {
    const Plan plan = PlanOf(c);
    const std::int64_t copies = c.stage == 0 ? c.world_size : 1;
    // What the weights lack: nothing, the lower half of the bits, or all of them.
    const std::int64_t master = c.dtype == DType::kFloat32    ? 0
                                : c.dtype == DType::kBFloat16 ? 2 * kTrained
                                                              : 4 * kTrained;
    EXPECT_EQ(SumOverRanks(plan, Tag::kMaster), copies * master);
    EXPECT_EQ(SumOverRanks(plan, Tag::kMoments), copies * 8 * kTrained);
  }
}

TEST(Plan, GradientSumsAreThoseOfTheOwnedSliceAtEveryStage) {
  for (const Case& c : Cases(0)) {
    Settings settings = SettingsOf(c);
    settings.gradient_accumulation_steps = 2;
    EXPECT_EQ(SumOverRanks(PlanOf(c, settings), Tag::kGradients), 4 * kTrained);
  }
}

TEST(Plan, GradientsThatNothingIsAddedToAreKeptAsTheyCome) {
  for (const Case& c : Cases(0)) {
    const Plan plan = PlanOf(c);  // one micro-step
    EXPECT_EQ(plan.sums_in_weight_dtype, c.world_size == 1);
    EXPECT_EQ(plan.sums_dtype(0), c.world_size == 1 ? c.dtype : DType::kFloat32);
    EXPECT_EQ(SumOverRanks(plan, Tag::kGradients),
              (c.world_size == 1 ? ElementBytes(c.dtype) : 4) * kTrained);
  }
}

TEST(Plan, NoRankHoldsMuchMoreThanItsShare) {
  for (const Case& c : Cases(0)) {
    if (c.stage == 0 || c.world_size == 1) continue;
    const Plan plan = PlanOf(c);
    for (int rank = 0; rank < c.world_size; ++rank) {
      const TagBytes bytes = plan.BytesOfRank(rank);
      // A slice is rounded up to 64 elements in each unit, and each member is.
      const std::int64_t most =
          kTrained / c.world_size + 64 * static_cast<std::int64_t>(2 * plan.units.size() + 6);
      EXPECT_LE(Of(bytes, Tag::kMoments), 8 * most);
      EXPECT_LE(Of(bytes, Tag::kGradients), 4 * most);
    }
  }
}

TEST(Plan, PaddingIsWhatRoundingAdds) {
  const Plan plan = PlanOf({3, 2, DType::kBFloat16, 1 << 20});
  // Trained: 256 + 256 + 64 + 704 + 64 = 1344 elements, in slices of 704; frozen: 128 in slices
  // of 64.
  ASSERT_EQ(plan.units.size(), 2u);
  EXPECT_EQ(plan.units[0].unit.slice_numel, 704);
  EXPECT_EQ(plan.units[1].unit.slice_numel, 64);
  const std::int64_t padding = 2 * 704 - kTrained;
  EXPECT_EQ(SumOverRanks(plan, Tag::kPadding), padding * (2 + 2 + 8 + 4) + (128 - kFrozen) * 2);
}

TEST(Plan, FrozenParametersHaveWeightsOnly) {
  for (const Case& c : Cases(0)) {
    Settings settings = SettingsOf(c);
    const Plan plan =
        MakePlan(settings, {Spec("frozen", {9, 9}, c.dtype, false)}, {.world_size = c.world_size});
    for (const Tag tag : {Tag::kMaster, Tag::kMoments, Tag::kGradients}) {
      EXPECT_EQ(SumOverRanks(plan, tag), 0);
    }
    EXPECT_EQ(SumOverRanks(plan, Tag::kWeights),
              (c.stage == 3 ? 1 : c.world_size) * kFrozen * ElementBytes(c.dtype));
    EXPECT_EQ(plan.staging_ring_bytes, 0);
  }
}

TEST(Plan, TheOptimizerDecidesHowManyMoments) {
  const Case c = {1, 2, DType::kFloat32, 2048};
  Settings settings = SettingsOf(c);
  settings.optimizer.type = OptimizerType::kSgd;
  EXPECT_EQ(SumOverRanks(PlanOf(c, settings), Tag::kMoments), 0);
  settings.optimizer.momentum = 0.9;
  EXPECT_EQ(SumOverRanks(PlanOf(c, settings), Tag::kMoments), 4 * kTrained);
  settings.optimizer.type = OptimizerType::kAdam;
  EXPECT_EQ(SumOverRanks(PlanOf(c, settings), Tag::kMoments), 8 * kTrained);
}

TEST(Plan, OneRankHasNoSlotsAndNoBuckets) {
  for (const Case& c : Cases(0)) {
    if (c.world_size > 1) continue;
    const TagBytes bytes = PlanOf(c).BytesOfRank(0);
    EXPECT_EQ(Of(bytes, Tag::kSlots), 0);
    EXPECT_EQ(Of(bytes, Tag::kBuckets), 0);
  }
}

TEST(Plan, TheRingsHoldTheTwoLargestUnits) {
  for (const Case& c : Cases(0)) {
    if (c.world_size == 1) continue;
    const Plan plan = PlanOf(c);
    std::vector<std::int64_t> weights, gradients;
    for (const UnitPlan& unit : plan.units) {
      const std::int64_t bytes = unit.unit.padded_numel(c.world_size) * ElementBytes(c.dtype);
      if (unit.unit.sliced) weights.push_back(bytes);
      if (unit.unit.trainable) gradients.push_back(bytes);
    }
    const auto two_largest = [](std::vector<std::int64_t> bytes) {
      std::sort(bytes.rbegin(), bytes.rend());
      bytes.resize(2, 0);
      return bytes[0] + bytes[1];
    };
    EXPECT_EQ(plan.ring_bytes, c.stage == 3 ? two_largest(weights) : 0);
    EXPECT_EQ(Of(plan.BytesOfRank(0), Tag::kSlots), plan.ring_bytes);
    EXPECT_EQ(plan.staging_ring_bytes, two_largest(gradients));
    EXPECT_EQ(plan.own_staging_bytes, 0);
    EXPECT_EQ(plan.sums_tile_bytes > 0, c.stage == 0);
    EXPECT_EQ(Of(plan.BytesOfRank(0), Tag::kBuckets),
              plan.staging_ring_bytes + plan.descriptor_bytes + plan.sums_tile_bytes);
  }
}

TEST(Plan, SmallParametersStayWholeAtStageThree) {
  const Case c = {3, 2, DType::kBFloat16, 1 << 20};
  Settings settings = SettingsOf(c);
  settings.zero.param_persistence_threshold = 241;
  const Plan plan = PlanOf(c, settings);
  std::int64_t whole = 0;
  for (const UnitPlan& unit : plan.units) {
    for (const layout::Member& member : unit.unit.members) {
      EXPECT_EQ(unit.unit.sliced, member.numel >= 241);
    }
    EXPECT_EQ(unit.own_staging, !unit.unit.sliced && unit.unit.trainable);
    EXPECT_EQ(unit.state, unit.unit.trainable ? StateShare::kSlice : StateShare::kNone);
    if (!unit.unit.sliced) whole += unit.unit.numel;
  }
  EXPECT_EQ(whole, 240 + 16 + 81 + 1);
  EXPECT_EQ(SumOverRanks(plan, Tag::kWeights), 2 * (kTrained + kFrozen + whole));
  EXPECT_EQ(plan.own_staging_bytes, 2 * (256 + 64 + 64));  // bf16, one unit of trained ones
}

TEST(Plan, IgnoredParametersStayWhole) {
  const Case c = {3, 2, DType::kFloat32, 1};
  std::vector<layout::ParameterSpec> specs = Specs(c.dtype);
  specs[4].stays_whole = true;
  const Plan plan = MakePlan(SettingsOf(c), specs, {.world_size = 2});
  for (const UnitPlan& unit : plan.units) {
    EXPECT_EQ(unit.unit.sliced, unit.unit.members.front().parameter != 4);
  }
}

TEST(Plan, BucketsAreNeverLargerThanTheModelNeeds) {
  const Case c = {2, 2, DType::kFloat32, 1};
  Settings settings = SettingsOf(c);
  EXPECT_EQ(PlanOf(c, settings).bucket_numel, 384);  // the slice of the largest unit, 704 / 2
  settings.zero.reduce_bucket_size = 100;
  EXPECT_EQ(PlanOf(c, settings).bucket_numel, 50);
  settings.zero.reduce_bucket_size = 1;
  EXPECT_EQ(PlanOf(c, settings).bucket_numel, 1);
}

TEST(Plan, RanksOnSeveralHostsNeedTheBuffersOfAnAllToAll) {
  const Case c = {2, 4, DType::kBFloat16, 1};
  Settings settings = SettingsOf(c);
  settings.zero.reduce_bucket_size = 400;
  const Plan near = MakePlan(settings, Specs(c.dtype), {.world_size = 4});
  const Plan far = MakePlan(settings, Specs(c.dtype), {.world_size = 4, .all_local = false});
  EXPECT_EQ(near.exchange_scratch_bytes, 0);
  EXPECT_EQ(far.exchange_scratch_bytes, 2 * 4 * 100 * 2);
  EXPECT_EQ(Of(far.BytesOfRank(0), Tag::kBuckets) - Of(near.BytesOfRank(0), Tag::kBuckets),
            far.exchange_scratch_bytes);
}

TEST(Plan, AnOffloadedOptimizerHasItsStateAndACopyOfTheWeightsOnTheHost) {
  for (const Case& c : Cases(0)) {
    if (c.stage == 0) continue;
    Settings settings = SettingsOf(c);
    settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
    const Plan plan = PlanOf(c, settings), near = PlanOf(c);
    for (const Tag tag : {Tag::kMaster, Tag::kMoments, Tag::kGradients}) {
      EXPECT_EQ(SumOverRanks(plan, tag, Tier::kDevice), 0);
      EXPECT_EQ(SumOverRanks(plan, tag, Tier::kHost), SumOverRanks(near, tag));
    }
    const std::int64_t slices = kTrained * ElementBytes(c.dtype);
    EXPECT_EQ(SumOverRanks(plan, Tag::kWeights, Tier::kHost), slices);
    // Where weights are sliced, what is at home on the host is all that the rank holds of them.
    const std::int64_t moved = c.stage == 3 && c.world_size > 1 ? slices : 0;
    EXPECT_EQ(SumOverRanks(plan, Tag::kWeights, Tier::kDevice),
              SumOverRanks(near, Tag::kWeights) - moved);
    EXPECT_EQ(plan.ring_bytes, near.ring_bytes);
  }
}

TEST(Plan, TheRatioSaysHowMuchOfTheStateIsOnTheHostFromTheEndOfTheModel) {
  std::vector<layout::ParameterSpec> specs;
  for (int i = 0; i < 20; ++i) specs.push_back(Spec("p", {64}, DType::kBFloat16));
  Settings settings = SettingsOf({1, 1, DType::kBFloat16, 1});
  settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
  for (const auto& [ratio, units] : {std::pair{0.0, 0}, {0.3, 6}, {0.7, 14}, {1.0, 20}}) {
    settings.zero.offload_optimizer.ratio = ratio;
    const Plan plan = MakePlan(settings, specs, {});
    EXPECT_EQ(SumOverRanks(plan, Tag::kMoments, Tier::kHost), units * 64 * 8);
    EXPECT_EQ(SumOverRanks(plan, Tag::kMoments, Tier::kDevice), (20 - units) * 64 * 8);
    EXPECT_EQ(SumOverRanks(plan, Tag::kMaster, Tier::kHost), units * 64 * 2);
    for (int unit = 0; unit < 20; ++unit) {
      EXPECT_EQ(plan.units[unit].home, unit < 20 - units ? Tier::kDevice : Tier::kHost);
    }
  }
}

TEST(Plan, OffloadedWeightsAreAtHomeOnTheHostAndPassThroughTheRing) {
  for (const int world_size : {1, 2, 4}) {
    const Case c = {3, world_size, DType::kBFloat16, 1};
    Settings settings = SettingsOf(c);
    settings.zero.offload_param.device = OffloadDevice::kCpu;
    settings.zero.param_persistence_threshold = 241;  // "a", "c", "frozen" and "one" are smaller
    const Plan plan = PlanOf(c, settings);
    const std::int64_t small = 240 + 16 + 81 + 1, large = 256 + 700;
    EXPECT_EQ(SumOverRanks(plan, Tag::kWeights, Tier::kHost), 2 * large);
    EXPECT_EQ(SumOverRanks(plan, Tag::kWeights, Tier::kDevice), 2 * small * world_size);
    EXPECT_EQ(SumOverRanks(plan, Tag::kMoments, Tier::kHost), 8 * large);
    EXPECT_EQ(SumOverRanks(plan, Tag::kMoments, Tier::kDevice), 8 * (kTrained - large));
    std::int64_t gathered = 0;
    for (const UnitPlan& unit : plan.units) {
      EXPECT_EQ(unit.resident, unit.unit.members.front().numel < 241);
      EXPECT_EQ(unit.unit.sliced, !unit.resident && world_size > 1);
      if (!unit.resident) gathered += unit.unit.padded_numel(world_size) * 2;
    }
    EXPECT_EQ(plan.ring_bytes, gathered);  // there are two such units
    EXPECT_EQ(Of(plan.BytesOfRank(0, Tier::kDevice), Tag::kSlots), plan.ring_bytes);
  }
}

TEST(Plan, TheTiersTogetherAreTheRank) {
  for (const Case& c : Cases(0)) {
    Settings settings = SettingsOf(c);
    settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
    settings.zero.offload_optimizer.ratio = 0.5;
    if (c.stage == 2) settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
    if (c.stage == 3) settings.zero.offload_param.device = OffloadDevice::kCpu;
    const Plan plan = PlanOf(c, settings);
    const TagBytes device = plan.BytesOfRank(0, Tier::kDevice);
    const TagBytes host = plan.BytesOfRank(0, Tier::kHost), all = plan.BytesOfRank(0);
    const TagBytes disk = plan.BytesOfRank(0, Tier::kDisk);
    for (std::size_t tag = 0; tag < kTagCount; ++tag) {
      EXPECT_EQ(all[tag], device[tag] + host[tag] + disk[tag]);
    }
  }
}

TEST(Plan, PrefetchOnTheCpuIsWhatTheFileGivesAndNeverMoreThanTheModelNeeds) {
  const Case c = {3, 2, DType::kBFloat16, 1};
  Settings settings = SettingsOf(c);
  settings.zero.prefetch_bucket_size = 100;
  const Plan without = PlanOf(c, settings);
  EXPECT_EQ(without.prefetch_bytes, 0);
  settings.given = {"zero_optimization.stage3_prefetch_bucket_size"};
  const Plan some = PlanOf(c, settings);
  EXPECT_EQ(some.prefetch_bytes, 128 * 2);  // a multiple of 64 elements
  EXPECT_EQ(some.ring_bytes, without.ring_bytes + some.prefetch_bytes);
  settings.zero.prefetch_bucket_size = 1'000'000;
  std::int64_t all = 0;
  for (const UnitPlan& unit : some.units) all += 2 * unit.unit.padded_numel(2);
  EXPECT_EQ(PlanOf(c, settings).ring_bytes, all);
  settings.zero.prefetch_bucket_size = 0;
  EXPECT_EQ(PlanOf(c, settings).ring_bytes, without.ring_bytes);
}

TEST(Plan, OnCudaSlicesAreMultiplesOfWhatTorchGivesOut) {
  for (const Case& c : Cases(0)) {
    const Plan plan =
        MakePlan(SettingsOf(c), Specs(c.dtype), {.world_size = c.world_size, .on_cuda = true});
    EXPECT_TRUE(plan.on_cuda);
    for (const UnitPlan& unit : plan.units) EXPECT_EQ(unit.unit.slice_numel * 2 % 512, 0);
  }
}

TEST(Plan, GradientsLandOnTheHostOnlyOnTheWayFromCudaToFp32Sums) {
  const Case c = {1, 1, DType::kBFloat16, 1};
  Settings settings = SettingsOf(c);
  settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
  const Target cuda = {.on_cuda = true};
  EXPECT_EQ(MakePlan(settings, Specs(c.dtype), cuda).landing_bytes, 0);  // kept as they come
  settings.gradient_accumulation_steps = 2;
  EXPECT_EQ(MakePlan(settings, Specs(c.dtype), {}).landing_bytes, 0);
  const Plan plan = MakePlan(settings, Specs(c.dtype), cuda);
  EXPECT_EQ(plan.landing_bytes, 2 * (768 + 256));  // the two largest units
  EXPECT_EQ(Of(plan.BytesOfRank(0, Tier::kHost), Tag::kBuckets),
            plan.landing_bytes + NormBytes(plan).used);
}

TEST(Plan, Fp32GradientsLandOnTheHostOfOneMicroStepToo) {
  const Case c = {1, 1, DType::kFloat32, 1};
  Settings settings = SettingsOf(c);
  settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
  EXPECT_GT(MakePlan(settings, Specs(c.dtype), {.on_cuda = true}).landing_bytes, 0);
}

TEST(Plan, GradientsOnTheirWayToTheHostHaveARingOnTheDevice) {
  const Case c = {1, 1, DType::kBFloat16, 1};
  Settings settings = SettingsOf(c);
  EXPECT_EQ(MakePlan(settings, Specs(c.dtype), {.on_cuda = true}).crossing_bytes, 0);
  settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
  EXPECT_EQ(MakePlan(settings, Specs(c.dtype), {}).crossing_bytes, 0);
  const Plan plan = MakePlan(settings, Specs(c.dtype), {.on_cuda = true});
  std::int64_t all = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.unit.trainable) all += StagingBytes(unit.unit, 1);
  }
  EXPECT_EQ(plan.crossing_bytes, all);  // of a small model
  const auto with_one_of = [&](std::int64_t numel) {
    std::vector<layout::ParameterSpec> specs = Specs(c.dtype);
    specs.front().shape = {numel};
    specs.front().numel = numel;
    return MakePlan(settings, specs, {.on_cuda = true}).crossing_bytes;
  };
  EXPECT_EQ(with_one_of(1 << 28), kLeastCrossingBytes);  // 512 MiB
  EXPECT_NEAR(static_cast<double>(with_one_of(1LL << 31)), 0x1p32 / 24, 0x1p16);
  EXPECT_EQ(with_one_of(1LL << 34), kMostCrossingBytes);
}

TEST(Plan, HeldIsTheSliceWhereWeightsOrStateAreSliced) {
  for (const Case& c : Cases(0)) {
    const Plan plan = PlanOf(c);
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      const layout::Unit& unit = plan.units[u].unit;
      const bool slice = c.stage == 3 || (c.stage > 0 && unit.trainable);
      EXPECT_EQ(plan.HeldNumel(static_cast<int>(u)),
                slice ? unit.slice_numel : unit.slice_numel * c.world_size);
    }
  }
}

TEST(Plan, OfNoParametersIsEmpty) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Settings settings = SettingsOf({stage, 4, DType::kFloat32, 1});
    const Plan plan = MakePlan(settings, {}, {.world_size = 4});
    for (const std::int64_t bytes : plan.BytesOfRank(3)) EXPECT_EQ(bytes, 0);
  }
}

}  // namespace
}  // namespace ullage::plan
