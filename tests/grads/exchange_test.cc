// The two ways between ranks give the same bits.
#include <random>

#include "comm/connect.h"
#include "grads/reducer_world.h"
#include "grads/slice_exchange.h"
#include "support/run_ranks.h"

namespace ullage::grads {
namespace {

// Three passes over random gradients in the window; the last pass leaves a unit out.
std::vector<std::vector<float>> SumsThrough(World& world, bool collective) {
  std::vector<std::vector<float>> sums;
  for (const plan::UnitPlan& unit : world.plan.units) {
    sums.emplace_back(static_cast<std::size_t>(unit.unit.slice_numel), 0.0f);
  }
  const SumsOf sums_of = [&](int unit) { return sums[static_cast<std::size_t>(unit)].data(); };
  memory::Memory memory(memory::Place::kHost);
  {
    Sums in_window(world.plan, world.window_plan, world.rank(), *world.window, memory);
    const auto exchange = collective
                              ? MakeCollectiveExchange(world.plan, world.comm, memory, sums_of)
                              : MakeWindowExchange(world.plan, world.window_plan, world.comm,
                                                   *world.window, memory, in_window);
    for (std::uint64_t pass = 1; pass <= 3; ++pass) {
      exchange->Begin(pass);
      for (const int unit : ExchangeOrder(world.plan)) {
        const bool has_gradients = pass != 3 || unit % 2 == world.rank() % 2;
        if (has_gradients) {
          std::mt19937 random(static_cast<unsigned>(pass * 100 + unit * 10 + world.rank()));
          auto* gradients = reinterpret_cast<float*>(exchange->Reserve(unit));
          const std::int64_t numel =
              world.plan.units[unit].unit.padded_numel(world.plan.world_size);
          for (std::int64_t i = 0; i < numel; ++i) {
            EXPECT_EQ(gradients[i], 0);  // memory is handed out clean
            gradients[i] = static_cast<float>(random()) * 1e-9f;
          }
        }
        exchange->Send(unit, has_gradients);
        exchange->Progress();
      }
      exchange->Finish();
      world.comm.Barrier(static_cast<std::uint32_t>(pass));  // as every Backward ends
    }
    for (std::size_t unit = 0; !collective && unit < sums.size(); ++unit) {
      if (!world.plan.units[unit].unit.trainable) continue;
      const auto* data = reinterpret_cast<const float*>(in_window.Of(static_cast<int>(unit)).data);
      sums[unit].assign(data, data + sums[unit].size());
    }
  }
  for (const std::int64_t bytes : memory.ledger().now()) EXPECT_EQ(bytes, 0);
  return sums;
}

TEST(Exchange, ThroughTheWindowAndThroughCollectivesHaveTheSameBits) {
  for (const int world_size : {2, 4}) {
    for (const std::int64_t bucket : {7, 64, 1'000'000}) {
      OnWorlds({.world_size = world_size, .unit_bytes = 2048, .bucket_numel = bucket},
               [](World& world) {
                 world.reducer.reset();  // the window is for the exchange here
                 const auto window = SumsThrough(world, false), all = SumsThrough(world, true);
                 EXPECT_EQ(window, all);
                 EXPECT_NE(window.front().front(), 0);
               });
    }
  }
}

TEST(Exchange, GoesBackwardThroughTheTrainableUnits) {
  OnWorlds({.world_size = 1}, [](World& world) {
    const std::vector<int> order = ExchangeOrder(world.plan);
    EXPECT_TRUE(std::is_sorted(order.rbegin(), order.rend()));
    EXPECT_EQ(order.size(), world.plan.units.size() - 1);  // not the frozen one
    for (const int unit : order) EXPECT_TRUE(world.plan.units[unit].unit.trainable);
  });
}

TEST(Exchange, ScratchHoldsTwoBucketsForEachRank) {
  plan::Plan plan;
  plan.world_size = 4;
  plan.bucket_numel = 10;
  plan.weight_dtype = DType::kBFloat16;
  EXPECT_EQ(BucketScratchBytes(plan), 2 * 4 * 10 * 2);
}

}  // namespace
}  // namespace ullage::grads
