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
                     const GradientNorm norm =
                         MeasureGradient(world.plan, *world.reducer, world.comm, 3);
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
        OnWorlds(
            {.world_size = world_size,
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
              const GradientNorm norm = MeasureGradient(world.plan, *world.reducer, world.comm, 3);
              EXPECT_FALSE(norm.is_finite);
              EXPECT_EQ(norm.overflowed, 3);
              EXPECT_TRUE(std::isfinite(norm.sum_of_squares));
              world.comm.Barrier(8);
              world.reducer->Clear();
              EXPECT_TRUE(MeasureGradient(world.plan, *world.reducer, world.comm, 4).is_finite);
            });
      }
    }
  }
}

TEST(GradientNorm, OfNothingIsZero) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const GradientNorm norm = MeasureGradient(world.plan, *world.reducer, world.comm, 1);
    EXPECT_EQ(norm.sum_of_squares, 0);
    EXPECT_TRUE(norm.is_finite);
  });
}

TEST(GradientNorm, OfHugeGradientsDoesNotOverflow) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.reducer->Backward((world.leaves[1] * 1e38).sum(), 1, false);  // 2e38 in each element
    const GradientNorm norm = MeasureGradient(world.plan, *world.reducer, world.comm, 1);
    EXPECT_TRUE(norm.is_finite);
    EXPECT_DOUBLE_EQ(std::sqrt(norm.sum_of_squares), 16 * 2 * double{1e38f});
  });
}

}  // namespace
}  // namespace ullage::optim
