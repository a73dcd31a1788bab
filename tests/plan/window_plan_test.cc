// What lies where in the memory that peers may read.
#include "plan/window_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace ullage::plan {
namespace {

// What a rank has of a unit's weights in the window: all that is on the device, or its slice.
std::int64_t WeightBytes(const UnitPlan& unit, int rank, int world_size) {
  return (unit.resident ? ResidentBytes(unit, world_size) : HomeBytes(unit, rank, world_size))
      .total();
}

Plan MakeSmallPlan(int stage, int world_size, std::int64_t threshold = 0) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = stage;
  settings.zero.param_persistence_threshold = threshold;
  settings.ullage.unit_size = 1;
  return MakePlan(settings,
                  {{"a", {200}, 200},
                   {"b", {10}, 10},
                   {"c", {64}, 64, DType::kFloat32, false},
                   {"d", {1000}, 1000}},
                  {.world_size = world_size});
}

TEST(WindowPlan, RegionsAreAlignedAndDoNotOverlap) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world_size : {1, 2, 3, 8}) {
      for (const std::int64_t threshold : {0, 100}) {
        const Plan plan = MakeSmallPlan(stage, world_size, threshold);
        const WindowPlan window = MakeWindowPlan(plan);
        std::vector<std::pair<std::int64_t, std::int64_t>> regions;  // begin, end
        const auto add = [&](SharedPlace place, std::int64_t bytes) {
          EXPECT_FALSE(place.on_device);  // operators run on the host
          if (place.exists() && bytes > 0) {
            regions.emplace_back(place.offset, place.offset + bytes);
          }
        };
        for (std::size_t u = 0; u < plan.units.size(); ++u) {
          add(window.weights[u], WeightBytes(plan.units[u], 0, world_size));
          add(window.sums[u], GradientBytes(plan.units[u], 0, DType::kFloat32).total());
          add(window.own_staging[u], StagingBytes(plan.units[u].unit, world_size));
          EXPECT_EQ(window.weights[u].exists(), world_size > 1);  // alone, nobody reads them
          EXPECT_EQ(window.own_staging[u].exists(), plan.units[u].own_staging);
          EXPECT_EQ(window.sums[u].exists(),
                    stage == 0 && world_size > 1 && plan.units[u].unit.trainable);
        }
        add(window.staging_ring, plan.staging_ring_bytes);
        add({false, window.descriptors}, plan.descriptor_bytes);
        std::sort(regions.begin(), regions.end());
        std::int64_t end = 0;
        for (const auto& [first, last] : regions) {
          EXPECT_GE(first, end);
          EXPECT_EQ(first % 64, 0);
          end = last;
        }
        EXPECT_LE(end, window.host_bytes);
        EXPECT_LT(window.host_bytes - end, 64);
        EXPECT_EQ(window.device_bytes, 0);
      }
    }
  }
}

TEST(WindowPlan, IsTheSameForEveryRank) {
  // Weights of rank 0 have another padding than those of the last, but not another size.
  const Plan plan = MakeSmallPlan(3, 3);
  for (const UnitPlan& unit : plan.units) {
    for (int rank = 1; rank < 3; ++rank) {
      EXPECT_EQ(WeightBytes(unit, rank, 3), WeightBytes(unit, 0, 3));
      EXPECT_EQ(GradientBytes(unit, rank, DType::kFloat32).total(),
                GradientBytes(unit, 0, DType::kFloat32).total());
    }
  }
}

TEST(WindowPlan, OnCudaHostMemoryHasWhatIsAtHomeThereAndWhatTheCpuReads) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = 3;
  settings.zero.param_persistence_threshold = 0;
  settings.zero.offload_param.device = OffloadDevice::kCpu;
  settings.ullage.unit_size = 1;
  const Plan plan = MakePlan(settings, {{"a", {200}, 200}, {"d", {1000}, 1000}},
                             {.world_size = 2, .on_cuda = true});
  const WindowPlan window = MakeWindowPlan(plan);
  for (const SharedPlace place : window.weights) EXPECT_FALSE(place.on_device);
  EXPECT_TRUE(window.staging_ring.on_device);
  EXPECT_EQ(window.device_bytes, layout::RoundUp(plan.staging_ring_bytes, 512));
  // Slices of 256 and 512 elements, then the table.
  EXPECT_EQ(window.descriptors, 4 * (256 + 512));
  EXPECT_EQ(window.host_bytes, window.descriptors + layout::RoundUp(plan.descriptor_bytes, 64));
}

TEST(WindowPlan, WhatIsSharedIsNotAllocatedAgain) {
  for (const int world_size : {1, 2}) {
    for (const bool offload : {false, true}) {
      Settings settings;
      settings.train_micro_batch_size_per_gpu = 1;
      settings.zero.stage = 3;
      settings.zero.param_persistence_threshold = 0;
      settings.ullage.unit_size = 1;
      if (offload) settings.zero.offload_param.device = OffloadDevice::kCpu;
      const Plan plan = MakePlan(settings, {{"a", {512}, 512}, {"b", {2048}, 2048}},
                                 {.world_size = world_size, .on_cuda = true});
      const WindowPlan window = MakeWindowPlan(plan);
      const std::int64_t numel = (512 + 2048) / world_size;  // that a rank holds
      // fp32 sums when there is anything to add, moments, and landing or the like.
      const TagBytes planned = plan.BytesOfRank(0, offload ? Tier::kHost : Tier::kDevice);
      const auto of = [&](Tag tag) { return planned[static_cast<std::size_t>(tag)]; };
      EXPECT_EQ(of(Tag::kWeights), 4 * numel);
      std::int64_t all = 0;
      for (const std::int64_t bytes : planned) all += bytes;
      const std::int64_t own =
          BytesBesideWindow(plan, window, 0, offload ? Tier::kHost : Tier::kDevice);
      if (world_size == 1) {
        EXPECT_EQ(own, all);
      } else if (offload) {
        EXPECT_EQ(own, all - 4 * numel);
      } else {
        EXPECT_EQ(own, all - window.device_bytes - plan.descriptor_bytes);
      }
    }
  }
}

TEST(WindowPlan, EverySignalWordHasOneMeaning) {
  const WindowPlan window = MakeWindowPlan(MakeSmallPlan(3, 2));
  ASSERT_EQ(window.units, 4);
  std::set<int> words = {window.backward_done(), window.sums_complete(), window.late_total(),
                         window.sums_read()};
  for (int unit = 0; unit < window.units; ++unit) {
    words.insert({window.version(unit), window.published(unit), window.consumed(unit),
                  window.fetched(unit)});
  }
  EXPECT_EQ(words.size(), 4u + 4u * 4u);
  EXPECT_EQ(*words.begin(), 0);
  EXPECT_EQ(*words.rbegin() + 1, window.words());
}

}  // namespace
}  // namespace ullage::plan
