// Gradients in an unusual order, several in one pass, and ranks that drift apart.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <random>

#include "grads/reducer_world.h"

namespace ullage::grads {
namespace {

namespace ag = torch::autograd;

TEST(Order, AFirstUnitWhoseGradientComesFirstWaitsInABufferOfItsOwn) {
  for (const int world_size : {2, 4}) {
    for (const bool hosts_apart : {false, true}) {
      OnWorlds({.world_size = world_size, .hosts_apart = hosts_apart}, [&](World& world) {
        std::vector<int> reversed = world.All();
        std::reverse(reversed.begin(), reversed.end());
        const std::int64_t before = world.Buckets();
        world.reducer->Backward(world.Loss(0, reversed), 1, false);
        world.ExpectSums(SumOfPasses(world, 1));
        EXPECT_GT(world.Buckets(/*peak=*/true), before);
        EXPECT_EQ(world.Buckets(), before);
      });
    }
  }
}

TEST(Order, AnyOrderOnAnyRankGivesTheSameBits) {
  for (const std::int64_t unit_bytes : {1, 2048}) {
    for (const std::int64_t threshold : {0, 250}) {
      OnWorlds({.world_size = 4, .unit_bytes = unit_bytes, .persistence_threshold = threshold},
               [](World& world) {
                 std::mt19937 random(static_cast<unsigned>(world.rank()));
                 for (int pass = 0; pass < 10; ++pass) {
                   std::vector<int> order = world.All();
                   std::shuffle(order.begin(), order.end(), random);
                   world.reducer->Backward(world.Loss(pass, order), 1, false);
                 }
                 world.ExpectSums(SumOfPasses(world, 10));
               });
    }
  }
}

TEST(Order, DriftingRanksWithAStagingRingSmallerThanTheModelStayRight) {
  for (const int world_size : {2, 4}) {
    OnWorlds({.world_size = world_size}, [](World& world) {
      std::int64_t all = 0;
      for (const plan::UnitPlan& unit : world.plan.units) {
        all += plan::StagingBytes(unit.unit, world.plan.world_size);
      }
      ASSERT_LT(world.plan.staging_ring_bytes, all);
      std::mt19937 random(static_cast<unsigned>(world.rank()));
      const auto doze = [&](const at::Tensor& gradient) {
        if (random() % 16 == 0) Sleep(1);
        return gradient;
      };
      for (const int p : world.All()) world.leaves[p].register_hook(doze);
      const int kPasses = world.plan.world_size == 2 ? 200 : 60;
      for (int pass = 0; pass < kPasses; ++pass) {
        std::vector<int> order = world.All();
        if (random() % 4 == 0) std::shuffle(order.begin(), order.end(), random);
        if (random() % 8 == 0) Sleep(1);
        world.reducer->Backward(world.Loss(pass, order), 1, false);
      }
      world.ExpectSums(SumOfPasses(world, kPasses));
    });
  }
}

// A reentrant checkpoint around x * sum(w): the graph of the loss does not know w.
struct Checkpoint : ag::Function<Checkpoint> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<at::TensorImpl>& weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = at::Tensor(weight);
    return x * at::Tensor(weight).to(at::kFloat);
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    {
      at::AutoGradMode with_grad(true);
      const at::Tensor w = context->saved_data["weight"].toTensor();
      ag::backward({x * w.to(at::kFloat)}, {gradients[0]});
    }
    return {x.grad(), at::Tensor()};
  }
};

TEST(Order, SeveralContributionsInOnePassAreAllAdded) {
  for (const int world_size : {1, 2, 4}) {
    for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
      for (const auto precision : {Precision::kFloat32, Precision::kBFloat16}) {
        for (const bool hosts_apart : {false, true}) {
          OnWorlds(
              {.world_size = world_size,
               .unit_bytes = unit_bytes,
               .precision = precision,
               .hosts_apart = hosts_apart},
              [](World& world) {
                // "d" gives three gradients: one that the graph announces and two from
                // nested passes. "e" gives two, both nested. "a" only the announced one.
                const at::Tensor x = at::full({1}, world.rank() + 2.0).set_requires_grad(true);
                const at::Tensor &d = world.leaves[3], &e = world.leaves[5];
                at::Tensor loss =
                    (d * 4).to(at::kFloat).sum() + (world.leaves[0] * 3).to(at::kFloat).sum();
                for (int use = 0; use < 2; ++use) {
                  loss = loss + Checkpoint::apply(x.expand({10, 70}), d.getIntrusivePtr()).sum();
                  loss = loss + Checkpoint::apply(x.expand({333}), e.getIntrusivePtr()).sum();
                }
                for (int pass = 0; pass < 2; ++pass) {
                  world.reducer->Backward(loss, 1, /*retain_graph=*/true);
                }
                const int w = world.plan.world_size;
                const double x_sum = w * (w - 1) / 2.0 + 2 * w;
                std::vector<at::Tensor> expected = world.Zeros();
                expected[0].fill_(2 * 3 * w);
                expected[3].fill_(2 * (4 * w + 2 * x_sum));
                expected[5].fill_(2 * 2 * x_sum);
                world.ExpectSums(expected);
                EXPECT_EQ(world.Buckets(), [&] {
                  const auto tag = static_cast<std::size_t>(memory::Tag::kBuckets);
                  const std::int64_t planned = world.plan.BytesOfRank(world.rank())[tag];
                  return world.plan.exchange_scratch_bytes > 0
                             ? world.plan.exchange_scratch_bytes
                             : planned - world.plan.sums_tile_bytes;
                }());
              });
        }
      }
    }
  }
}

TEST(Order, ContributionsOfNestedPassesHaveTheSameBitsForAllUnitAndBucketSizes) {
  std::vector<float> first;
  for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
    for (const std::int64_t bucket : {7, 1'000'000}) {
      for (const bool hosts_apart : {false, true}) {
        std::vector<float> sums;
        OnWorlds({.world_size = 2,
                  .unit_bytes = unit_bytes,
                  .bucket_numel = bucket,
                  .hosts_apart = hosts_apart},
                 [&](World& world) {
                   const at::Tensor& d = world.leaves[3];
                   at::Tensor x = (world.Gradient(3, 7, world.rank())).set_requires_grad(true);
                   at::Tensor loss = world.Loss(0, world.All());
                   for (int use = 0; use < 3; ++use) {
                     loss = loss + Checkpoint::apply(x * (0.3 + use), d.getIntrusivePtr()).sum();
                   }
                   world.reducer->Backward(loss, 1, false);
                   // What rank 0 owns of "d" depends on the layout; its first elements come first
                   // wherever they are.
                   for (std::size_t u = 0; u < world.plan.units.size(); ++u) {
                     for (const layout::Piece& piece :
                          layout::PiecesOfSlice(world.plan.units[u].unit, world.rank())) {
                       if (piece.parameter != 3 || piece.parameter_offset > 0) continue;
                       const UnitSums of_unit = world.reducer->Of(static_cast<int>(u));
                       ASSERT_EQ(of_unit.dtype, DType::kFloat32);
                       const float* begin =
                           reinterpret_cast<const float*>(of_unit.data) + piece.slice_offset;
                       sums.assign(begin, begin + 64);
                     }
                   }
                 });
        ASSERT_EQ(sums.size(), 64u);
        if (first.empty()) first = sums;
        EXPECT_EQ(sums, first) << unit_bytes << " " << bucket << " " << hosts_apart;
      }
    }
  }
}

TEST(Order, ANestedPassOnOneRankOnlyIsAddedToo) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const at::Tensor x = at::full({1}, 5.0).set_requires_grad(true);
    for (int pass = 0; pass < 4; ++pass) {
      at::Tensor loss = world.leaves[2].sum();
      if (world.rank() == pass % 2) {
        loss = loss + Checkpoint::apply(x.expand({333}), world.leaves[5].getIntrusivePtr()).sum();
      }
      world.reducer->Backward(loss, 1, false);
    }
    std::vector<at::Tensor> expected = world.Zeros();
    expected[2].fill_(8);
    expected[5].fill_(20);
    world.ExpectSums(expected);
  });
}

}  // namespace
}  // namespace ullage::grads
