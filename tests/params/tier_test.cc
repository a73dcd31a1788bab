// Weights at home on the device or on the host: the same values, and writes reach home.
#include <algorithm>
#include <random>

#include "params/model_world.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

const std::vector<Precision> kPrecisions = {Precision::kFloat32, Precision::kBFloat16,
                                            Precision::kFloat16};

void ForEachWorld(const std::function<void(const WorldOptions&)>& body) {
  for (const int world_size : {1, 2}) {
    for (const int stage : {1, 3}) {
      for (const WorldOptions& options : EachTier({.world_size = world_size, .stage = stage})) {
        body(options);
      }
    }
  }
}

// The elements of parameter `p` among what the rank holds, and where they start there.
struct Part {
  std::int64_t held_offset = 0;
  std::int64_t parameter_offset = 0;
  std::int64_t numel = 0;
};

Part HeldPart(const World& world, int p) {
  const layout::Unit& unit = world.plan.units[static_cast<std::size_t>(world.UnitOf(p))].unit;
  if (world.plan.HeldNumel(world.UnitOf(p)) == unit.slice_numel) {
    for (const layout::Piece& piece : layout::PiecesOfSlice(unit, world.rank())) {
      if (piece.parameter == p) return {piece.slice_offset, piece.parameter_offset, piece.numel};
    }
    return {};
  }
  for (const layout::Member& member : unit.members) {
    if (member.parameter == p) return {member.offset, 0, member.numel};
  }
  return {};
}

// What the listener was told: the weights from before, and those at home by then.
struct Told {
  int unit;
  std::int64_t offset;
  at::Tensor before, after;
};

std::vector<Told> Listen(World& world, const std::function<void()>& writes) {
  std::vector<Told> told;
  world.store->OnWrite([&](int unit, std::int64_t offset, std::int64_t numel, const void* before) {
    const at::ScalarType dtype = world.tensors[0].scalar_type();
    const auto copy = [&](const void* from) {
      at::Tensor values = at::empty({numel}, dtype);
      std::memcpy(values.mutable_data_ptr(), from, values.nbytes());
      return values;
    };
    told.push_back({unit, offset, copy(before), copy(world.store->Home(unit) + 2 * offset)});
  });
  writes();
  world.store->OnWrite({});
  return told;
}

void ExpectTold(const World& world, const Told& told, int p, const at::Tensor& before,
                const at::Tensor& after) {
  const Part part = HeldPart(world, p);
  EXPECT_EQ(told.unit, world.UnitOf(p));
  EXPECT_EQ(told.offset, part.held_offset);
  const auto held = [&](const at::Tensor& values) {
    return values.flatten().narrow(0, part.parameter_offset, part.numel);
  };
  EXPECT_TRUE(at::equal(told.before, held(before))) << world.plan.parameters[p].name;
  EXPECT_TRUE(at::equal(told.after, held(after))) << world.plan.parameters[p].name;
}

TEST(Tiers, EveryParameterHasItsBytesWhereverItIsAtHome) {
  ForEachWorld([](WorldOptions options) {
    for (const Precision precision : kPrecisions) {
      for (const std::int64_t unit_bytes : {1, 2048}) {
        options.precision = precision;
        options.unit_bytes = unit_bytes;
        OnWorlds(options, [](World& world) {
          std::mt19937 random(static_cast<unsigned>(world.rank()));
          std::vector<int> order;
          for (int p = 0; p < world.count(); ++p) order.push_back(p);
          for (int step = 0; step < 3; ++step) {
            std::shuffle(order.begin(), order.end(), random);
            for (const int p : order) {
              const double add = world.plan.parameters[p].trainable ? step : 0;
              EXPECT_TRUE(at::equal(world.tensors[p].detach().clone(), world.Expected(p, add)))
                  << world.plan.parameters[p].name << " after " << step;
            }
            world.Update(1);
          }
        });
      }
    }
  });
}

TEST(Tiers, TheLedgerShowsThePlanOfEachTier) {
  ForEachWorld([](const WorldOptions& options) {
    OnWorlds(options, [](World& world) {
      world.Sweep();
      world.Update(1);
      world.Sweep();
      for (const auto tier : {plan::Tier::kDevice, plan::Tier::kHost}) {
        const plan::TagBytes planned = world.plan.BytesOfRank(world.rank(), tier);
        for (const auto tag : {memory::Tag::kWeights, memory::Tag::kSlots}) {
          const auto t = static_cast<std::size_t>(tag);
          EXPECT_EQ(world.ledger.now(tier)[t], planned[t]);
          EXPECT_EQ(world.ledger.peak(tier)[t], planned[t]);
        }
      }
      world.store.reset();
      EXPECT_EQ(world.ledger.now(), memory::TagBytes{});
    });
  });
}

TEST(Tiers, OffloadedWeightsOfOneRankPassThroughTheRing) {
  OnWorlds({.persistence_threshold = 90, .offload_param = true}, [](World& world) {
    for (int round = 0; round < 3; ++round) world.Sweep();
    EXPECT_GT(world.store->statistics().gathers, 4);  // some were pushed out and came again
    EXPECT_EQ(world.store->statistics().overflows, 0);
    EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
    (void)world.tensors[0].sum();
    (void)world.tensors[1].sum();
    const std::string message = MessageOf([&] { (void)world.tensors[3].const_data_ptr(); });
    EXPECT_NE(message.find("'wide'"), std::string::npos) << message;
    EXPECT_NE(world.tensors[5].const_data_ptr(), nullptr);  // small, so it stays
  });
}

TEST(Tiers, WritesReachHomeAndSurviveAnUpdate) {
  ForEachWorld([](WorldOptions options) {
    for (const Precision precision : kPrecisions) {
      options.precision = precision;
      OnWorlds(options, [](World& world) {
        at::NoGradGuard no_grad;
        world.tensors[3].add_(1);
        at::Tensor bias = world.Expected(2);
        bias.slice(0, 3, 7).fill_(9);
        world.tensors[2].slice(0, 3, 7).fill_(9);
        world.tensors[7].mul_(0);
        world.Sweep();
        EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 1)));
        EXPECT_TRUE(at::equal(world.tensors[2].clone(), bias));
        world.Update(4);
        EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 5)));
        EXPECT_TRUE(at::equal(world.tensors[2].clone(), bias + 4));
        EXPECT_TRUE(at::equal(world.tensors[7].clone(), at::zeros_like(world.Expected(7))));
      });
    }
  });
}

TEST(Tiers, AWriteTellsTheOldWeightsOfWhatTheRankHolds) {
  ForEachWorld([](WorldOptions options) {
    for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
      options.precision = precision;
      OnWorlds(options, [](World& world) {
        at::NoGradGuard no_grad;
        const std::vector<Told> told = Listen(world, [&] {
          (void)(world.tensors[1] + 1);  // reads
          world.tensors[6].add_(1);
          world.tensors[6].add_(2);
          world.tensors[0].fill_(1);
          world.tensors[7].fill_(1);  // frozen: there is no master
        });
        std::vector<std::tuple<int, at::Tensor, at::Tensor>> expected;
        if (HeldPart(world, 6).numel > 0) {
          expected.emplace_back(6, world.Expected(6), world.Expected(6, 1));
          expected.emplace_back(6, world.Expected(6, 1), world.Expected(6, 3));
        }
        if (HeldPart(world, 0).numel > 0) {
          expected.emplace_back(0, world.Expected(0), at::ones_like(world.Expected(0)));
        }
        ASSERT_EQ(told.size(), expected.size());
        for (std::size_t i = 0; i < told.size(); ++i) {
          ExpectTold(world, told[i], std::get<0>(expected[i]), std::get<1>(expected[i]),
                     std::get<2>(expected[i]));
        }
        EXPECT_EQ(world.Buckets(), 0);  // copies of old weights are gone
      });
    }
  });
}

TEST(Tiers, WritesToFp32WeightsNeedNoOldOnes) {
  ForEachWorld([](const WorldOptions& options) {
    OnWorlds(options, [](World& world) {
      at::NoGradGuard no_grad;
      EXPECT_TRUE(Listen(world, [&] { world.tensors[6].add_(1); }).empty());
    });
  });
}

TEST(Tiers, AnOperatorThatThrowsLeavesNothingBehind) {
  ForEachWorld([](WorldOptions options) {
    options.precision = Precision::kBFloat16;
    OnWorlds(options, [](World& world) {
      at::NoGradGuard no_grad;
      const std::vector<Told> failed = Listen(world, [&] {
        EXPECT_THROW(world.tensors[3].add_(at::ones({3})), c10::Error);
        EXPECT_THROW(world.tensors[3].copy_(at::ones({2, 2})), c10::Error);
      });
      EXPECT_TRUE(failed.empty());
      EXPECT_EQ(world.Buckets(), 0);
      const std::vector<Told> told = Listen(world, [&] { world.tensors[3].add_(1); });
      ASSERT_EQ(told.size(), HeldPart(world, 3).numel > 0 ? 1u : 0u);
      if (!told.empty()) ExpectTold(world, told[0], 3, world.Expected(3), world.Expected(3, 1));
      world.Update(1);  // nothing is held
      EXPECT_TRUE(at::equal(world.tensors[3].clone(), world.Expected(3, 2)));
    });
  });
}

TEST(Tiers, AWriteWithHeldBytesTellsWhatTheyWereBefore) {
  ForEachWorld([](WorldOptions options) {
    options.precision = Precision::kBFloat16;
    OnWorlds(options, [](World& world) {
      const std::vector<Told> told = Listen(world, [&] {
        world.store->Acquire({3, 4, 3}, /*write=*/true);
        world.tensors[3].mutable_data_ptr<at::BFloat16>()[699] = 77;
        world.tensors[3].mutable_data_ptr<at::BFloat16>()[0] = 78;
        world.store->Release({3, 4, 3}, /*write=*/true);
      });
      at::Tensor after = world.Expected(3);
      after[0][0] = 78;
      after[9][69] = 77;
      ASSERT_FALSE(told.empty() && HeldPart(world, 3).numel > 0);
      if (!told.empty()) ExpectTold(world, told[0], 3, world.Expected(3), after);
      world.Sweep();
      EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), after));
    });
  });
}

TEST(Tiers, AnOperatorMayWriteToBytesThatAreHeldToWrite) {
  ForEachWorld([](WorldOptions options) {
    options.precision = Precision::kBFloat16;
    OnWorlds(options, [](World& world) {
      at::NoGradGuard no_grad;
      const std::vector<Told> told = Listen(world, [&] {
        world.store->Acquire({3}, /*write=*/true);
        world.tensors[3].add_(1);
        world.tensors[3].mutable_data_ptr<at::BFloat16>()[5] = 99;
        world.store->Release({3}, /*write=*/true);
      });
      at::Tensor after = world.Expected(3, 1);
      after[0][5] = 99;
      if (HeldPart(world, 3).numel > 0) {
        ASSERT_EQ(told.size(), 2u);
        ExpectTold(world, told[0], 3, world.Expected(3), world.Expected(3, 1));
        const Part part = HeldPart(world, 3);
        EXPECT_TRUE(
            at::equal(told[1].after, after.flatten().narrow(0, part.parameter_offset, part.numel)));
      }
      EXPECT_TRUE(at::equal(world.tensors[3].clone(), after));
      EXPECT_EQ(world.Buckets(), 0);
    });
  });
}

TEST(Tiers, AReboundParameterReachesHome) {
  for (const WorldOptions& options : EachTier({.world_size = 2})) {
    const LoggedLines logged;
    OnWorlds(options, [](World& world) {
      world.tensors[3].set_data(at::full({10, 70}, 3.0));
      world.store->CheckBindings();
      world.Sweep();
      EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), at::full({10, 70}, 3.0)));
      world.Update(1);
      EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), at::full({10, 70}, 4.0)));
    });
    EXPECT_EQ(logged.Count("parameter 'wide' was rebound"), 2);
  }
}

TEST(Tiers, ParametersThatStayOutliveTheStoreWithTheirValues) {
  for (const WorldOptions& options : EachTier({.stage = 1, .precision = Precision::kBFloat16})) {
    std::vector<at::Tensor> left;
    OnWorlds(options, [&](World& world) {
      world.Update(1);
      left = {world.tensors[3], world.Expected(3, 1)};
    });
    EXPECT_TRUE(at::equal(left[0], left[1]));
  }
}

}  // namespace
}  // namespace ullage::params
