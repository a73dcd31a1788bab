// What the user writes to weights reaches the slices, on every rank.
#include <random>

#include "params/model_world.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

TEST(Write, UnderNoGradSurvivesTheNextGather) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world_size : {1, 2, 4}) {
      for (const std::int64_t unit_bytes : {std::int64_t{1}, std::int64_t{1} << 20}) {
        OnWorlds({.world_size = world_size, .stage = stage, .unit_bytes = unit_bytes},
                 [](World& world) {
                   at::NoGradGuard no_grad;
                   world.tensors[3].add_(1);
                   world.Sweep();
                   EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 1)));
                   world.tensors[3].data() += 2;
                   world.tensors[0].copy_(at::zeros({30, 8}));
                   world.tensors[2].slice(0, 3, 7).fill_(9);
                   at::_foreach_add_({world.tensors[6], world.tensors[8]}, 3);
                   world.Sweep();
                   EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 3)));
                   EXPECT_TRUE(at::equal(world.tensors[0].clone(), at::zeros({30, 8})));
                   at::Tensor bias = world.Expected(2);
                   bias.slice(0, 3, 7).fill_(9);
                   EXPECT_TRUE(at::equal(world.tensors[2].clone(), bias));
                   EXPECT_TRUE(at::equal(world.tensors[6].clone(), world.Expected(6, 3)));
                   EXPECT_TRUE(at::equal(world.tensors[8].clone(), world.Expected(8, 3)));
                   EXPECT_TRUE(at::equal(world.tensors[1].clone(), world.Expected(1)));
                 });
      }
    }
  }
}

TEST(Write, SurvivesAnUpdateToo) {
  for (int stage = 0; stage <= 3; ++stage) {
    OnWorlds({.world_size = 2, .stage = stage}, [](World& world) {
      at::NoGradGuard no_grad;
      world.tensors[1].mul_(0);
      world.tensors[7].mul_(0);
      world.Update(4);
      EXPECT_TRUE(at::equal(world.tensors[1].clone(), at::full({16, 16}, 4.0)));
      EXPECT_TRUE(at::equal(world.tensors[7].clone(), at::zeros({9, 9})));
    });
  }
}

TEST(Write, ARankThatIsLateIsWaitedFor) {
  for (const int late : {0, 1}) {
    OnWorlds({.world_size = 2}, [late](World& world) {
      at::NoGradGuard no_grad;
      if (world.rank() == late) Sleep(150);
      world.tensors[3].add_(1);  // the late one must still start from old values
      EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 1)));
      world.Sweep();
      EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 1)));
    });
  }
}

TEST(Write, ManyOfThemByDriftingRanksAreNeitherLostNorDoubled) {
  OnWorlds({.world_size = 4, .unit_bytes = 2048}, [](World& world) {
    at::NoGradGuard no_grad;
    std::mt19937 random(static_cast<unsigned>(world.rank()));
    for (int round = 1; round <= 25; ++round) {
      if (random() % 2 == 0) Sleep(static_cast<int>(random() % 4));
      world.tensors[3].add_(1);
      world.tensors[6].sub_(1);
      if (random() % 2 == 0) world.Sweep();
      EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, round)));
      EXPECT_TRUE(at::equal(world.tensors[6].clone(), world.Expected(6, -round)));
      if (random() % 2 == 0) world.Sweep();
    }
  });
}

TEST(Write, WithHeldBytesIsKept) {
  for (const int stage : {0, 3}) {
    OnWorlds({.world_size = 2, .stage = stage}, [](World& world) {
      world.store->Acquire({3, 4, 5}, /*write=*/true);
      world.tensors[3].mutable_data_ptr<float>()[699] = 77;
      world.tensors[5].mutable_data_ptr<float>()[0] = 78;
      world.store->Release({3, 4, 5}, true);
      world.Sweep();
      EXPECT_EQ(world.tensors[3].flatten()[699].item<float>(), 77);
      EXPECT_EQ(world.tensors[5][0].item<float>(), 78);
    });
  }
}

TEST(Write, BySomeRanksOnlyEndsAllWithAnError) {
  const std::string message = MessageOf([] {
    OnWorlds({.world_size = 2, .timeout = std::chrono::seconds(2)}, [](World& world) {
      at::NoGradGuard no_grad;
      if (world.rank() == 0) {
        EXPECT_THROW(world.tensors[3].add_(1), CommError);
        EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
        throw CommError("as expected");
      }
      Sleep(2500);
    });
  });
  EXPECT_NE(message.find("as expected"), std::string::npos) << message;
}

TEST(Write, ThatFailsChangesNothing) {
  OnWorlds({.world_size = 2}, [](World& world) {
    at::NoGradGuard no_grad;
    EXPECT_THROW(world.tensors[3].add_(at::ones({3})), c10::Error);
    EXPECT_THROW(world.tensors[7].resize_({1000}), StateError);
    world.Update(1);  // nothing is held
    EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 1)));
  });
}

}  // namespace
}  // namespace ullage::params
