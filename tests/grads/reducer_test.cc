// From autograd to the owner's fp32 sums: the order of additions and the edges.
#include "grads/reducer_world.h"
#include "memory/ledger.h"
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::grads {
namespace {

TEST(Reducer, SumsInTheOrderOfPassAndRankBitForBit) {
  for (const int world_size : {1, 2, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (world_size == 1 && stage > 0) continue;  // nothing is sliced at any stage
      for (const auto precision : {Precision::kFloat32, Precision::kBFloat16}) {
        for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
          OnWorlds({.world_size = world_size,
                    .stage = stage,
                    .unit_bytes = unit_bytes,
                    .precision = precision},
                   [](World& world) {
                     for (int pass = 0; pass < 3; ++pass) {
                       world.reducer->Backward(world.Loss(pass, world.All()), 1, false);
                     }
                     world.ExpectSums(SumOfPasses(world, 3));
                   });
        }
      }
    }
  }
}

TEST(Reducer, BucketSizesChangeNothing) {
  for (const bool hosts_apart : {false, true}) {
    for (const std::int64_t bucket : {1, 7, 64}) {
      OnWorlds({.world_size = 2, .bucket_numel = bucket, .hosts_apart = hosts_apart},
               [](World& world) {
                 for (int pass = 0; pass < 2; ++pass) {
                   world.reducer->Backward(world.Loss(pass, world.All()), 1, false);
                 }
                 world.ExpectSums(SumOfPasses(world, 2));
               });
    }
  }
}

TEST(Reducer, SmallParametersWithAPlaceOfTheirOwnSumTheSame) {
  for (const int world_size : {2, 4}) {
    OnWorlds({.world_size = world_size, .persistence_threshold = 250}, [](World& world) {
      ASSERT_GT(world.plan.own_staging_bytes, 0);
      for (int pass = 0; pass < 4; ++pass) {
        world.reducer->Backward(world.Loss(pass, world.All()), 1, false);
      }
      world.ExpectSums(SumOfPasses(world, 4));
    });
  }
}

TEST(Reducer, TheSeedScalesEveryGradient) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.reducer->Backward(world.Loss(0, world.All()), 4, false);
    std::vector<at::Tensor> expected = SumOfPasses(world, 1);
    for (at::Tensor& sum : expected) sum = sum * 4;  // a power of two: exact
    world.ExpectSums(expected);
  });
}

TEST(Reducer, AbsentGradientsCountAsZero) {
  for (const int world_size : {1, 2, 4}) {
    for (const std::int64_t unit_bytes : {1, 2048}) {
      OnWorlds({.world_size = world_size, .unit_bytes = unit_bytes}, [](World& world) {
        const auto gives = [](int p, int pass, int rank) { return (p + pass + rank) % 3 != 0; };
        for (int pass = 0; pass < 4; ++pass) {
          std::vector<int> mine;
          for (const int p : world.All()) {
            if (gives(p, pass, world.rank())) mine.push_back(p);
          }
          world.reducer->Backward(world.Loss(pass, mine), 1, false);
        }
        world.ExpectSums(SumOfPasses(world, 4, gives));
      });
    }
  }
}

TEST(Reducer, ALossWithoutAGraphOrNoLossContributesZeros) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const auto only_first = [](int, int, int rank) { return rank == 0; };
    world.reducer->Backward(world.rank() == 0 ? world.Loss(0, world.All()) : at::Tensor(), 1,
                            false);
    world.ExpectSums(SumOfPasses(world, 1, only_first));
    world.reducer->Backward(at::ones({}), 1, false);
    world.reducer->Backward(at::Tensor(), 1, false);
    world.ExpectSums(SumOfPasses(world, 1, only_first));
  });
}

TEST(Reducer, LeavesNoGradientInTheLeaves) {
  for (const int world_size : {1, 2}) {
    OnWorlds({.world_size = world_size}, [](World& world) {
      world.reducer->Backward(world.Loss(0, world.All()), 1, false);
      for (const int p : world.All()) {
        if (world.leaves[p].numel() > 0) {
          EXPECT_FALSE(world.leaves[p].grad().defined()) << p;
        }
      }
    });
  }
}

TEST(Reducer, AGraphMayBeUsedTwice) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const at::Tensor loss = world.Loss(0, world.All());
    world.reducer->Backward(loss, 1, /*retain_graph=*/true);
    world.reducer->Backward(loss, 1, /*retain_graph=*/false);
    std::vector<at::Tensor> expected = world.Zeros();
    for (int pass = 0; pass < 2; ++pass) {
      for (int rank = 0; rank < 2; ++rank) {
        for (const int p : world.All()) {
          expected[p] += world.Gradient(p, 0, rank);
        }
      }
    }
    world.ExpectSums(expected);
  });
}

TEST(Reducer, GradientsOfAnyLayoutAreTaken) {
  for (const int world_size : {1, 2}) {
    OnWorlds({.world_size = world_size}, [](World& world) {
      // The gradient of a transposed use is not contiguous, an expanded one has stride 0.
      const at::Tensor g = at::arange(700, at::kFloat).view({70, 10});
      const at::Tensor loss = (world.leaves[3].t() * g).sum() + world.leaves[5].sum();
      world.reducer->Backward(loss, 1, false);
      std::vector<at::Tensor> expected = world.Zeros();
      expected[3] = g.t() * world.plan.world_size;
      expected[5].fill_(world.plan.world_size);
      world.ExpectSums(expected);
    });
  }
}

TEST(Reducer, ASparseGradientIsRefusedByName) {
  OnWorlds({.world_size = 1}, [](World& world) {
    const at::Tensor ids = at::tensor({1, 2}, at::kLong);
    const at::Tensor loss = at::embedding(world.leaves[0], ids, -1, false, /*sparse=*/true).sum();
    EXPECT_THROW(world.reducer->Backward(loss, 1, false), UnsupportedError);
    EXPECT_NE(MessageOf([&] {
                world.reducer->Backward(at::embedding(world.leaves[0], ids, -1, false, true).sum(),
                                        1, false);
              }).find("'a'"),
              std::string::npos);
  });
}

TEST(Reducer, AReboundLeafKeepsGivingItsGradient) {
  for (const int world_size : {1, 2}) {
    OnWorlds({.world_size = world_size}, [](World& world) {
      const at::Tensor before = world.Loss(0, {1});
      const at::Tensor weights = world.leaves[1].detach().clone();
      // Another dtype makes autograd forget the node that was hooked.
      world.leaves[1].set_data(weights.to(at::kBFloat16));
      world.leaves[1].set_data(weights);
      world.reducer->Backward(before, 1, false);  // a graph made before
      world.reducer->Backward(world.Loss(1, world.All()), 1, false);
      world.ExpectSums(
          SumOfPasses(world, 2, [](int p, int pass, int) { return pass == 1 || p == 1; }));
      EXPECT_FALSE(world.leaves[1].grad().defined());
    });
  }
}

TEST(Reducer, ClearForgetsAllSums) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.reducer->Backward(world.Loss(0, world.All()), 1, false);
    world.reducer->Clear();
    world.ExpectSums(world.Zeros());
    world.reducer->Backward(world.Loss(0, world.All()), 1, false);
    world.ExpectSums(SumOfPasses(world, 1));
  });
}

TEST(Reducer, PeersSumsCanBeReadAtStageZero) {
  for (const int world_size : {2, 4}) {
    OnWorlds({.world_size = world_size, .stage = 0, .unit_bytes = 2048}, [](World& world) {
      for (int update = 0; update < 3; ++update) {
        world.reducer->Backward(world.Loss(0, world.All()), 1, false);
        const std::vector<at::Tensor> expected = SumOfPasses(world, 1);
        for (std::size_t u = 0; u < world.plan.units.size(); ++u) {
          const layout::Unit& unit = world.plan.units[u].unit;
          if (!unit.trainable) continue;
          for (int owner = 0; owner < world.plan.world_size; ++owner) {
            if (owner == world.rank()) continue;
            std::vector<float> sums(static_cast<std::size_t>(unit.slice_numel));
            const std::int64_t half = unit.slice_numel / 2;
            world.reducer->ReadSums(owner, static_cast<int>(u), 0, half, sums.data());
            world.reducer->ReadSums(owner, static_cast<int>(u), half, unit.slice_numel - half,
                                    sums.data() + half);
            for (const layout::Piece& piece : layout::PiecesOfSlice(unit, owner)) {
              const at::Tensor want = expected[piece.parameter].flatten().narrow(
                  0, piece.parameter_offset, piece.numel);
              const at::Tensor have =
                  at::from_blob(sums.data() + piece.slice_offset, {piece.numel});
              EXPECT_TRUE(at::equal(have, want));
            }
          }
        }
        world.reducer->SumsRead();
        world.reducer->Clear();  // nobody reads any more
      }
    });
  }
}

TEST(Reducer, KnowsWhichParameterAnElementBelongsTo) {
  OnWorlds({.world_size = 2, .unit_bytes = 1 << 20}, [](World& world) {
    for (std::size_t u = 0; u < world.plan.units.size(); ++u) {
      const layout::Unit& unit = world.plan.units[u].unit;
      for (const layout::Piece& piece : layout::PiecesOfSlice(unit, world.rank())) {
        const int index = static_cast<int>(u);
        EXPECT_EQ(world.reducer->ParameterAt(index, piece.slice_offset), piece.parameter);
        EXPECT_EQ(world.reducer->ParameterAt(index, piece.slice_offset + piece.numel - 1),
                  piece.parameter);
      }
    }
    EXPECT_THROW((void)world.reducer->ParameterAt(0, 1 << 20), StateError);
  });
}

TEST(Reducer, HoldsWhatThePlanSaysAndNothingAfterwards) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world_size : {1, 2, 4}) {
      OnWorlds({.world_size = world_size, .stage = stage}, [](World& world) {
        const plan::TagBytes planned = world.plan.BytesOfRank(world.rank());
        const auto of = [](const plan::TagBytes& bytes, memory::Tag tag) {
          return bytes[static_cast<std::size_t>(tag)];
        };
        for (int pass = 0; pass < 2; ++pass) {
          world.reducer->Backward(world.Loss(pass, world.All()), 1, false);
        }
        // The tile for peers' sums is the optimizer's.
        EXPECT_EQ(world.Buckets(), of(planned, memory::Tag::kBuckets) - world.plan.sums_tile_bytes);
        EXPECT_EQ(world.Buckets(/*peak=*/true), world.Buckets());
        EXPECT_EQ(of(world.ledger.now(), memory::Tag::kGradients),
                  of(planned, memory::Tag::kGradients));
        world.reducer.reset();
        for (const std::int64_t bytes : world.ledger.now()) EXPECT_EQ(bytes, 0);
      });
    }
  }
}

}  // namespace
}  // namespace ullage::grads
