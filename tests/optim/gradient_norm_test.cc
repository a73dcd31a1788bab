// The norm of the gradient is the same however it is split.
#include "optim/gradient_norm.h"

#include <cmath>
#include <limits>
#include <optional>

#include "grads/reducer_world.h"

namespace ullage::optim {
namespace {

using grads::OnWorlds;
using grads::World;

GradientNorm MeasureOnce(World& world) {
  NormMeter meter(world.plan, *world.reducer, world.comm, world.memory);
  world.reducer->Complete();
  return meter.Measure(3);
}

TEST(GradientNorm, HasTheSameBitsForAllWorldsStagesAndUnits) {
  std::optional<double> first;
  for (const int world_size : {1, 2, 4}) {
    for (const int stage : {0, 3}) {
      for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
        for (const std::int64_t threshold : {0, 250}) {
          std::vector<double> norms(static_cast<std::size_t>(world_size));
          OnWorlds({.world_size = world_size,
                    .stage = stage,
                    .unit_bytes = unit_bytes,
                    .persistence_threshold = threshold},
                   [&](World& world) {
                     // Only rank 0 gives gradients, so that the sums do not depend on the world.
                     const bool gives = world.rank() == 0;
                     world.reducer->Backward(gives ? world.Loss(0, world.All()) : at::Tensor(), 1,
                                             false);
                     const GradientNorm norm = MeasureOnce(world);
                     EXPECT_TRUE(norm.is_finite);
                     EXPECT_EQ(norm.overflowed, -1);
                     norms[world.rank()] = norm.sum_of_squares;
                     double expected = 0;
                     for (const int p : world.All()) {
                       expected +=
                           world.Gradient(p, 0, 0).to(at::kDouble).square().sum().item<double>();
                     }
                     EXPECT_NEAR(norm.sum_of_squares, expected, 1e-10 * expected);
                   });
          for (const double norm : norms) {
            if (!first) first = norm;
            EXPECT_EQ(norm, *first) << world_size << " ranks, stage " << stage;
          }
        }
      }
    }
  }
}

TEST(GradientNorm, NamesTheFirstParameterThatIsNotFiniteOnEveryRank) {
  for (const int world_size : {1, 2, 4}) {
    for (const std::int64_t unit_bytes : {1, 1 << 20}) {
      for (const std::int64_t threshold : {0, 250}) {
        OnWorlds({.world_size = world_size,
                  .unit_bytes = unit_bytes,
                  .persistence_threshold = threshold},
                 [](World& world) {
                   // The last rank has an inf in "e", the first a nan at the end of "d".
                   at::Tensor loss = world.Loss(0, world.All());
                   at::Tensor factor = at::ones({333}), last = at::ones({10, 70});
                   if (world.rank() == world.plan.world_size - 1) {
                     factor[7] = std::numeric_limits<float>::infinity();
                   }
                   if (world.rank() == 0) last[9][69] = std::numeric_limits<float>::quiet_NaN();
                   loss = loss + (world.leaves[5] * factor).sum() + (world.leaves[3] * last).sum();
                   world.reducer->Backward(loss, 1, false);
                   const GradientNorm norm = MeasureOnce(world);
                   EXPECT_FALSE(norm.is_finite);
                   EXPECT_EQ(norm.overflowed, 3);
                   EXPECT_TRUE(std::isfinite(norm.sum_of_squares));
                   world.comm.Barrier(8);
                   world.reducer->Clear();
                   EXPECT_TRUE(MeasureOnce(world).is_finite);
                 });
      }
    }
  }
}

// One rank; the sum of squares after each of three steps: all gradients once, some of them once,
// and some twice.
std::vector<double> NormsOfSteps(Precision precision, int accumulation_steps,
                                 std::int64_t unit_bytes, std::optional<double> ratio) {
  std::vector<double> norms;
  OnWorlds({.stage = 1,
            .unit_bytes = unit_bytes,
            .precision = precision,
            .accumulation_steps = accumulation_steps,
            .offload_optimizer = ratio},
           [&](World& world) {
             NormMeter meter(world.plan, *world.reducer, world.comm, world.memory);
             const auto step = [&](const std::vector<std::vector<int>>& passes) {
               for (std::size_t pass = 0; pass < passes.size(); ++pass) {
                 world.reducer->Backward(world.Loss(static_cast<int>(pass), passes[pass]), 1,
                                         false);
               }
               world.reducer->Complete();
               const GradientNorm norm = meter.Measure(1);
               EXPECT_TRUE(norm.is_finite);
               norms.push_back(norm.sum_of_squares);
               world.reducer->Clear();
             };
             step({world.All()});
             step({{0, 3, 6}});
             step({{0, 3, 5}, {3, 6}});
             step({{1, 3}});
           });
  return norms;
}

TEST(GradientNorm, OfGradientsKeptAsTheyCameIsThatOfFp32Sums) {
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    const std::vector<double> expected = NormsOfSteps(precision, 2, 1, std::nullopt);
    ASSERT_EQ(expected.size(), 4u);
    EXPECT_LT(expected[1], expected[0]);  // what was absent counts as zero
    for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
      for (const std::optional<double> ratio :
           {std::optional<double>(), std::optional(0.5), std::optional(1.0)}) {
        EXPECT_EQ(NormsOfSteps(precision, 1, unit_bytes, ratio), expected);
        EXPECT_EQ(NormsOfSteps(precision, 2, unit_bytes, ratio), expected);
      }
    }
  }
}

TEST(GradientNorm, FindsWhatIsNotFiniteIn16BitToo) {
  for (const double ratio : {0.0, 1.0}) {
    OnWorlds({.stage = 1,
              .unit_bytes = 1 << 20,
              .precision = Precision::kBFloat16,
              .accumulation_steps = 1,
              .offload_optimizer = ratio},
             [](World& world) {
               at::Tensor factor = at::ones({333}, at::kBFloat16);
               factor[332] = std::numeric_limits<float>::infinity();
               world.reducer->Backward((world.leaves[5] * factor).sum() + world.leaves[0].sum(), 1,
                                       false);
               const GradientNorm norm = MeasureOnce(world);
               EXPECT_FALSE(norm.is_finite);
               EXPECT_EQ(norm.overflowed, 5);
               EXPECT_TRUE(std::isfinite(norm.sum_of_squares));
             });
  }
}

TEST(GradientNorm, OfNothingIsZero) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const GradientNorm norm = MeasureOnce(world);
    EXPECT_EQ(norm.sum_of_squares, 0);
    EXPECT_TRUE(norm.is_finite);
  });
}

TEST(GradientNorm, OfHugeGradientsDoesNotOverflow) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.reducer->Backward((world.leaves[1] * 1e38).sum(), 1, false);  // 2e38 in each element
    const GradientNorm norm = MeasureOnce(world);
    EXPECT_TRUE(norm.is_finite);
    EXPECT_DOUBLE_EQ(std::sqrt(norm.sum_of_squares), 16 * 2 * double{1e38f});
  });
}

}  // namespace
}  // namespace ullage::optim
