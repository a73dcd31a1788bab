// A plan keeps within ullage.device_memory, to the byte, or says what it needs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "plan/plan.h"
#include "ullage/error.h"

namespace ullage::plan {
namespace {

// Units of 256 bf16 elements, and two of small parameters at the end.
constexpr int kUnits = 20;
constexpr std::int64_t kWeights = 512, kState = 256 * (2 + 8 + 2);
constexpr std::int64_t kSmallWeights = 128, kSmallState = 64 * (2 + 8 + 2);
constexpr std::int64_t kAll =
    (kUnits - 2) * (kWeights + kState) + 2 * (kSmallWeights + kSmallState);

std::vector<layout::ParameterSpec> Specs() {
  std::vector<layout::ParameterSpec> specs;
  for (int i = 0; i < kUnits; ++i) {
    const std::int64_t numel = i < kUnits - 2 ? 256 : 60;
    specs.push_back({"p", {numel}, numel, DType::kBFloat16});
  }
  return specs;
}

Settings SettingsWith(std::int64_t budget, int stage = 0) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.precision = Precision::kBFloat16;
  settings.zero.stage = stage;
  settings.zero.param_persistence_threshold = 61;
  settings.ullage.unit_size = 1;
  settings.ullage.device_memory = budget;
  return settings;
}

std::int64_t OnDevice(const Plan& plan) {
  const TagBytes bytes = plan.BytesOfRank(0, Tier::kDevice);
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

int UnitsWithStateOnHost(const Plan& plan) {
  return static_cast<int>(std::ranges::count_if(
      plan.units, [](const UnitPlan& unit) { return unit.home == Tier::kHost; }));
}

int UnitsThatPassThrough(const Plan& plan) {
  return static_cast<int>(
      std::ranges::count_if(plan.units, [](const UnitPlan& unit) { return !unit.resident; }));
}

TEST(Budget, WithRoomForAllLeavesAllOnTheDevice) {
  for (const std::int64_t budget : {kAll, kAll + 1, 10 * kAll}) {
    const Plan plan = MakePlan(SettingsWith(budget), Specs(), {});
    EXPECT_EQ(UnitsWithStateOnHost(plan), 0);
    EXPECT_EQ(OnDevice(plan), kAll);
    EXPECT_EQ(plan.BudgetLines().at(1), "all weights and optimizer state fit on the device");
  }
}

TEST(Budget, IsFilledWithStateFirstAndToTheByte) {
  std::int64_t needed = kAll;
  for (int moved = 1; moved <= kUnits; ++moved) {
    const std::int64_t last = moved <= 2 ? kSmallState : kState;
    needed -= last;
    for (const std::int64_t slack : {std::int64_t{0}, last - 1}) {
      const Plan plan = MakePlan(SettingsWith(needed + slack), Specs(), {});
      EXPECT_EQ(UnitsWithStateOnHost(plan), moved);
      EXPECT_EQ(OnDevice(plan), needed);
      for (int unit = 0; unit < kUnits; ++unit) {  // from the end of the model
        EXPECT_EQ(plan.units[unit].home, unit < kUnits - moved ? Tier::kDevice : Tier::kHost);
        EXPECT_TRUE(plan.units[unit].resident);
      }
    }
  }
}

TEST(Budget, CountsWhatOperatorsHoldAndWhatLiesOutside) {
  const Target target = {.operator_bytes = 3000, .outside_bytes = 500};
  EXPECT_EQ(UnitsWithStateOnHost(MakePlan(SettingsWith(kAll + 3500), Specs(), target)), 0);
  EXPECT_EQ(UnitsWithStateOnHost(MakePlan(SettingsWith(kAll + 3499), Specs(), target)), 1);
  EXPECT_EQ(UnitsWithStateOnHost(MakePlan(SettingsWith(kAll), Specs(), target)), 3);
}

TEST(Budget, MovesWeightsWhenMovingAllStateIsNotEnoughAndSmallParametersLast) {
  // Two small units with weights and state, a ring for two, and the weights of the others.
  for (int moved = 6; moved <= kUnits - 2; ++moved) {
    const std::int64_t needed = (kUnits - moved) * kWeights + 2 * (kSmallWeights + kSmallState);
    const Plan plan = MakePlan(SettingsWith(needed), Specs(), {});
    EXPECT_EQ(OnDevice(plan), needed);
    EXPECT_EQ(UnitsThatPassThrough(plan), moved);
    EXPECT_EQ(UnitsWithStateOnHost(plan), kUnits - 2);
    // Spread over the model: as many in its first half as in its second, but for one.
    int in_first_half = 0;
    for (int unit = 0; unit < kUnits - 2; ++unit) {
      if (!plan.units[unit].resident && unit < (kUnits - 2) / 2) ++in_first_half;
    }
    EXPECT_NEAR(in_first_half, moved / 2.0, 1);
    EXPECT_TRUE(plan.units[kUnits - 2].resident);
    EXPECT_TRUE(plan.units[kUnits - 1].resident);
  }
  const std::int64_t least = 2 * kWeights + 2 * kSmallWeights;
  EXPECT_EQ(UnitsWithStateOnHost(MakePlan(SettingsWith(least), Specs(), {})), kUnits);
  EXPECT_EQ(OnDevice(MakePlan(SettingsWith(least), Specs(), {})), least);
  EXPECT_THROW(MakePlan(SettingsWith(least - 1), Specs(), {}), OutOfMemoryError);
}

TEST(Budget, CountsTheBuffersThroughWhichStateIsStreamed) {
  const Target cuda = {.on_cuda = true};
  const std::int64_t all = OnDevice(MakePlan(SettingsWith(1 << 20), Specs(), cuda));
  for (std::int64_t budget = all - 1; budget > all * 6 / 10; budget -= 700) {
    const Plan plan = MakePlan(SettingsWith(budget), Specs(), cuda);
    EXPECT_GT(plan.stream_bytes, 0);
    EXPECT_LE(OnDevice(plan), budget);
    // One unit less on the host would not fit.
    Plan less = plan;
    const int first = kUnits - UnitsWithStateOnHost(plan);
    less.units[static_cast<std::size_t>(first)].home = Tier::kDevice;
    EXPECT_GT(OnDevice(less), budget);
  }
}

TEST(Budget, OnSeveralRanksMovesWeightsWithTheStateAtStageThree) {
  for (const int stage : {0, 1, 2, 3}) {
    const Target target = {.world_size = 2};
    const std::int64_t all = OnDevice(MakePlan(SettingsWith(1 << 20, stage), Specs(), target));
    const Plan plan = MakePlan(SettingsWith(all - 1, stage), Specs(), target);
    EXPECT_EQ(UnitsWithStateOnHost(plan), 1);
    EXPECT_LT(OnDevice(plan), all);
    // Of the two kinds of units at stage 3 those that are gathered go first.
    const int moved = stage == 3 ? kUnits - 3 : kUnits - 1;
    EXPECT_EQ(plan.units[static_cast<std::size_t>(moved)].home, Tier::kHost);
  }
}

TEST(Budget, IsOnlyCheckedWhereTheSettingsSayWhatLiesWhere) {
  Settings settings = SettingsWith(1 << 20, 3);
  settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
  settings.zero.offload_optimizer.ratio = 0.5;
  const Plan free = MakePlan(settings, Specs(), {});
  EXPECT_EQ(UnitsWithStateOnHost(free), 11);
  settings.ullage.device_memory = OnDevice(free);
  EXPECT_EQ(MakePlan(settings, Specs(), {}).ToText().substr(0, 60), free.ToText().substr(0, 60));
  settings.ullage.device_memory = OnDevice(free) - 1;
  try {
    MakePlan(settings, Specs(), {});
    ADD_FAILURE() << "it fits";
  } catch (const OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("leave the offload sections out"), std::string::npos)
        << error.what();
  }
  // "none" in the file is a word about it, too.
  settings = SettingsWith(kAll - 1);
  settings.given = {"zero_optimization.offload_optimizer.device"};
  EXPECT_THROW(MakePlan(settings, Specs(), {}), OutOfMemoryError);
}

TEST(Budget, ErrorsSayWhatIsNeededByTagAndWhatToChange) {
  const auto message = [](const Settings& settings, const Target& target) -> std::string {
    try {
      MakePlan(settings, Specs(), target);
      return "";
    } catch (const OutOfMemoryError& error) {
      return error.what();
    }
  };
  const Target target = {.operator_bytes = 1000, .outside_bytes = 88};
  EXPECT_EQ(message(SettingsWith(2268), target),
            "ullage.device_memory: 2.21 KiB do not suffice; 2.31 KiB are at least needed (100 B "
            "more): weights 240 B, slots 1.00 KiB, padding 16 B, operators 1000 B, outside torch's "
            "allocator 88 B\nhint: a smaller train_micro_batch_size_per_gpu, shorter records or "
            "ullage.recompute \"block\" lower what operators need; a smaller ullage.unit_size or "
            "stage3_prefetch_bucket_size lowers slots and buckets; or raise ullage.device_memory");
  const std::string ranks = message(SettingsWith(10), {.world_size = 2});
  EXPECT_NE(ranks.find("zero_optimization.stage 3 divides the weights"), std::string::npos);
  EXPECT_NE(message(SettingsWith(10, 3), {.world_size = 2}).find("ullage.unit_size"),
            std::string::npos);
}

TEST(Budget, LinesSayWhatLiesWhereAndWhy) {
  const Target target = {.operator_bytes = 1024, .outside_bytes = 512};
  // 12 of 18 units pass through a ring for two.
  constexpr std::int64_t kPlanned = 8 * kWeights + 2 * (kSmallWeights + kSmallState) + 1536;
  const Plan plan = MakePlan(SettingsWith(kPlanned), Specs(), target);
  const std::vector<std::string> lines = plan.BudgetLines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(
      lines[0],
      "ullage.device_memory 7.25 KiB: planned are 7.25 KiB, of which 5.75 KiB for the engine, "
      "1.00 KiB for operators, 512 B outside torch's allocator");
  EXPECT_EQ(lines[1],
            "optimizer state and gradients: of 18 units (54.0 KiB) on the host, because the device "
            "has no room for it; of 2 units (1.50 KiB) on the device");
  EXPECT_EQ(lines[2],
            "weights: of 12 units (6.00 KiB) at home on the host, because the device has no room "
            "for it; they pass through 1.00 KiB on the device");
  const auto json = nlohmann::json::parse(plan.ToJson());
  EXPECT_EQ(json["device_budget"], kPlanned);
  EXPECT_EQ(json["operator_bytes"], 1024);
  EXPECT_EQ(json["outside_bytes"], 512);
  for (const char* row : {"\non device         5.75 KiB\n", "\noperators         1.00 KiB\n",
                          "\noutside              512 B\n", "\nof budget         7.25 KiB\n"}) {
    EXPECT_NE(plan.ToText().find(row), std::string::npos) << row << plan.ToText();
  }
  Settings without = SettingsWith(1);
  without.ullage.device_memory.reset();
  EXPECT_TRUE(MakePlan(without, Specs(), {}).BudgetLines().empty());
}

TEST(Budget, LinesTellStateOnDiskFromStateOnTheHost) {
  Settings settings = SettingsWith(10 * kAll, 1);
  settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
  settings.zero.offload_optimizer.nvme_path = "somewhere";
  const std::vector<std::string> lines = MakePlan(settings, Specs(), {}).BudgetLines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1],
            "optimizer state and gradients: of 20 units (55.5 KiB) the state on disk and the "
            "gradients on the host, because the settings ask for it");
}

}  // namespace
}  // namespace ullage::plan
