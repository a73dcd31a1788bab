// Units gathered before an operator asks for them.
#include <algorithm>
#include <random>
#include <utility>

#include "params/model_world.h"

namespace ullage::params {
namespace {

constexpr std::int64_t kEverything = 1'000'000;

// Weights at home with the peers, and on the host of a single rank.
std::vector<WorldOptions> Worlds(std::int64_t prefetch_numel) {
  return {{.world_size = 2, .prefetch_numel = prefetch_numel},
          {.offload_param = true, .prefetch_numel = prefetch_numel},
          {.world_size = 2, .offload_param = true, .prefetch_numel = prefetch_numel}};
}

std::int64_t GatheredBytes(const World& world, int parameter) {
  const layout::Unit& unit =
      world.plan.units[static_cast<std::size_t>(world.UnitOf(parameter))].unit;
  return unit.padded_numel(world.plan.world_size) * ElementBytes(unit.dtype);
}

void ExpectRight(World& world, int p, double add) {
  const double own = world.plan.parameters[static_cast<std::size_t>(p)].trainable ? add : 0;
  EXPECT_TRUE(at::equal(world.tensors[static_cast<std::size_t>(p)].detach().clone(),
                        world.Expected(p, own)))
      << world.plan.parameters[static_cast<std::size_t>(p)].name << " after " << add;
}

// Eight units of 128 elements, of which the ring holds two besides those that wait.
TEST(Ahead, TheSecondStepGathersWhatTheFirstOneUsed) {
  for (const auto& [bucket, waiting] :
       {std::pair<std::int64_t, int>{128, 1}, {127, 1}, {300, 2}, {640, 5}, {kEverything, 6}}) {
    for (WorldOptions options : Worlds(bucket)) {
      for (int i = 0; i < 8; ++i) options.specs.push_back(Spec("p" + std::to_string(i), {128}));
      OnWorlds(options, [waiting = waiting](World& world) {
        for (int p = 0; p < 8; ++p) ExpectRight(world, p, 0);
        EXPECT_EQ(world.store->statistics().ahead, 0);
        EXPECT_EQ(world.store->statistics().gathers, 8);
        world.Update(1);
        for (int p = 0; p < 8; ++p) {
          ExpectRight(world, p, 1);
          // This one, and as many of the next ones as may wait.
          const int there = std::min(8, p + 1 + waiting);
          EXPECT_EQ(world.store->statistics().gathers, 8 + there);
          EXPECT_EQ(world.store->statistics().gathered_bytes, (8 + there) * 512);
        }
        EXPECT_EQ(world.store->statistics().ahead, 7);
      });
    }
  }
}

TEST(Ahead, NothingIsGatheredWithoutBeingAskedFor) {
  for (WorldOptions options : Worlds(0)) {
    for (const bool given : {true, false}) {
      if (!given) options.prefetch_numel.reset();
      OnWorlds(options, [](World& world) {
        for (int step = 1; step <= 3; ++step) {
          world.Sweep();
          world.Update(1);
          ExpectRight(world, 3, step);
        }
        EXPECT_EQ(world.store->statistics().ahead, 0);
        EXPECT_GT(world.store->statistics().gathers, 0);
      });
    }
  }
}

TEST(Ahead, WaitingUnitsNeverTakeMoreThanTheBucket) {
  for (const std::int64_t bucket : {64, 300, 700, 1200}) {
    for (const WorldOptions& options : Worlds(bucket)) {
      OnWorlds(options, [](World& world) {
        const std::vector<int> order = {0, 1, 2, 3, 5, 6, 8, 6, 5, 3, 2, 1, 0};
        std::int64_t ahead = 0;
        for (int step = 0; step <= 2; ++step) {
          const GatherStatistics start = world.store->statistics();
          std::vector<bool> used(9, false);
          std::int64_t used_bytes = 0;
          for (const int p : order) {
            ExpectRight(world, p, step);
            // Every unit is gathered once at least when it is used first.
            if (!used[static_cast<std::size_t>(p)]) used_bytes += GatheredBytes(world, p);
            used[static_cast<std::size_t>(p)] = true;
            const GatherStatistics now = world.store->statistics();
            if (now.gathers - start.gathers <= 7) {
              EXPECT_LE(now.gathered_bytes - start.gathered_bytes - used_bytes,
                        world.plan.prefetch_bytes);
            }
          }
          EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
          ahead = world.store->statistics().ahead - start.ahead;
          world.Update(1);
        }
        if (world.plan.prefetch_bytes >= 4 * 128) {
          EXPECT_GT(ahead, 0);
        }
        EXPECT_EQ(world.store->statistics().overflows, 0);
      });
    }
  }
}

TEST(Ahead, AWrongPredictionCostsNoBits) {
  for (const std::int64_t bucket : {std::int64_t{300}, std::int64_t{1200}, kEverything}) {
    for (const WorldOptions& options : Worlds(bucket)) {
      OnWorlds(options, [](World& world) {
        std::mt19937 random(static_cast<unsigned>(5 + world.rank()));
        for (int step = 0; step < 30; ++step) {
          // Each rank takes another branch in another order at every step.
          for (int use = 0; use < 6; ++use) {
            const int p = static_cast<int>(random() % 9);
            if (p != 4) ExpectRight(world, p, step);
          }
          if (step % 5 == 4) world.store->CheckBindings();
          world.Update(1);
        }
        EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
      });
    }
  }
}

TEST(Ahead, ComesBackAfterAWrongPrediction) {
  for (const WorldOptions& options : Worlds(700)) {
    OnWorlds(options, [](World& world) {
      const auto step = [&](const std::vector<int>& order, int add) {
        const std::int64_t before = world.store->statistics().ahead;
        for (const int p : order) ExpectRight(world, p, add);
        world.Update(1);
        return world.store->statistics().ahead - before;
      };
      step({0, 1, 2, 3, 6}, 0);
      const std::int64_t usual = step({0, 1, 2, 3, 6}, 1);
      EXPECT_GT(usual, 0);
      step({0, 8, 5}, 2);  // those that wait behind the first are not used
      step({0, 1, 2, 3, 6}, 3);
      EXPECT_EQ(step({0, 1, 2, 3, 6}, 4), usual);
    });
  }
}

TEST(Ahead, WritesReachUnitsThatWait) {
  for (const WorldOptions& options : Worlds(kEverything)) {
    OnWorlds(options, [](World& world) {
      world.Sweep();
      world.Update(1);
      (void)world.tensors[0].sum();  // "wide" waits now
      {
        at::NoGradGuard no_grad;
        world.tensors[3].add_(2);
      }
      ExpectRight(world, 3, 3);
      world.Update(1);
      ExpectRight(world, 3, 4);
      ExpectRight(world, 1, 2);
    });
  }
}

TEST(Ahead, GivesWayToAnOperatorThatNeedsSeveralUnits) {
  for (const std::int64_t bucket : {100, 300, 700}) {
    for (const WorldOptions& options : Worlds(bucket)) {
      OnWorlds(options, [](World& world) {
        world.Sweep();
        world.Update(1);
        for (int round = 0; round < 2; ++round) {
          const at::Tensor both =
              at::cat({world.tensors[3].detach().flatten(), world.tensors[1].detach().flatten(),
                       world.tensors[0].detach().flatten()});
          EXPECT_TRUE(at::equal(
              both, at::cat({world.Expected(3, 1).flatten(), world.Expected(1, 1).flatten(),
                             world.Expected(0, 1).flatten()})));
          world.Sweep();
        }
      });
    }
  }
}

}  // namespace
}  // namespace ullage::params
