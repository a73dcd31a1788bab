// New weights: nobody sees old or half ones after a step.
#include <random>

#include "params/model_world.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

void ExpectAll(World& world, double add) {
  for (int p = 0; p < world.count(); ++p) {
    const double own = world.plan.parameters[p].trainable ? add : 0;
    EXPECT_TRUE(at::equal(world.tensors[p].detach().clone(), world.Expected(p, own)))
        << world.plan.parameters[p].name << " after " << add;
  }
}

TEST(Update, PeersSeeTheNewWeightsAtEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world_size : {1, 2, 4}) {
      for (const std::int64_t threshold : {0, 200}) {
        OnWorlds({.world_size = world_size,
                  .stage = stage,
                  .unit_bytes = 2048,
                  .persistence_threshold = threshold},
                 [](World& world) {
                   ExpectAll(world, 0);
                   for (int step = 1; step <= 3; ++step) {
                     world.Update(1);
                     ExpectAll(world, step);
                   }
                 });
      }
    }
  }
}

TEST(Update, RanksThatDriftApartNeverMixOldAndNew) {
  for (const int stage : {1, 3}) {
    OnWorlds({.world_size = 4, .stage = stage, .persistence_threshold = 20}, [](World& world) {
      std::mt19937 random(static_cast<unsigned>(world.rank()));
      for (int step = 1; step <= 40; ++step) {
        world.Update(1, [&] { Sleep(static_cast<int>(random() % 4)); });
        if (random() % 2 == 0) Sleep(static_cast<int>(random() % 4));
        ExpectAll(world, step);
      }
    });
  }
}

TEST(Update, ARankThatRunsAheadWaitsForTheNewSlices) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.Sweep();
    const auto start = std::chrono::steady_clock::now();
    world.Update(1, [&] {
      if (world.rank() == 1) Sleep(200);
    });
    ExpectAll(world, 1);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(150));
  });
}

TEST(Update, OfWeightsThatAreHeldIsAnErrorByName) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.store->Acquire({1}, /*write=*/false);
    const std::string message = MessageOf([&] { world.store->BeginUpdate(); });
    EXPECT_NE(message.find("'square'"), std::string::npos) << message;
    EXPECT_NE(message.find("hint: end the scope of Gather()"), std::string::npos) << message;
    EXPECT_THROW(world.store->BeginUpdate(), StateError);
    world.store->Release({1}, false);
    world.Update(2);
    ExpectAll(world, 2);
  });
}

TEST(Update, FrozenWeightsStayWhereTheyAre) {
  OnWorlds({.world_size = 2}, [](World& world) {
    (void)world.tensors[7].sum();
    const std::int64_t before = world.store->statistics().gathers;
    world.Update(1);
    (void)world.tensors[7].sum();
    EXPECT_EQ(world.store->statistics().gathers, before);
  });
}

TEST(Update, MakesAGraphOfOldWeightsAnErrorAtEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    OnWorlds({.world_size = 2, .stage = stage}, [](World& world) {
      const at::Tensor x = at::ones({16, 16}).set_requires_grad(true);
      const at::Tensor y = at::mm(x, world.tensors[1]).sum();
      const at::Tensor z = at::mm(x.narrow(1, 0, 9), world.tensors[7]).sum();
      world.Update(1);
      EXPECT_NE(MessageOf([&] { y.backward(); }).find("modified by an inplace operation"),
                std::string::npos);
      z.backward();  // frozen weights did not change
    });
  }
}

TEST(Update, AWriteRightAfterItDoesNotReachThePeersThatAreStillFetching) {
  // Rank 1 fetches late: what rank 0 writes meanwhile must not be taken for the update's result.
  for (const int stage : {1, 2}) {
    OnWorlds({.world_size = 2, .stage = stage}, [](World& world) {
      world.comm.Barrier(1);
      world.store->BeginUpdate();
      for (std::size_t u = 0; u < world.plan.units.size(); ++u) {
        world.store->Publish(static_cast<int>(u));
      }
      if (world.rank() == 1) Sleep(200);
      world.store->EndUpdate();
      {
        at::NoGradGuard no_grad;
        world.tensors[1].add_(5);
      }
      EXPECT_TRUE(at::equal(world.tensors[1].detach().clone(), world.Expected(1, 5)));
    });
  }
}

}  // namespace
}  // namespace ullage::params
