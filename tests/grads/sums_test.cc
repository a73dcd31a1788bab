// Gradients of one rank: kept as they come while each comes once, fp32 sums as soon as one comes
// twice.
#include "grads/sums.h"

#include <cstring>

#include "grads/reducer_world.h"

namespace ullage::grads {
namespace {

constexpr const char* kWarning = "got a second gradient";

const std::vector<Precision> kPrecisions = {Precision::kFloat32, Precision::kBFloat16,
                                            Precision::kFloat16};

// One micro-step on one rank, over precisions, unit sizes and tiers.
void ForEachWorld(const std::function<void(World&)>& body) {
  for (const Precision precision : kPrecisions) {
    for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
      for (const std::optional<double> ratio :
           {std::optional<double>(), std::optional(1.0), std::optional(0.5)}) {
        OnWorlds({.stage = 1,
                  .unit_bytes = unit_bytes,
                  .precision = precision,
                  .accumulation_steps = 1,
                  .offload_optimizer = ratio},
                 body);
      }
    }
  }
}

void Pass(World& world, int pass, const std::vector<int>& parameters) {
  world.reducer->Backward(parameters.empty() ? at::Tensor() : world.Loss(pass, parameters), 1,
                          false);
}

// The gradients of the given (pass, parameters), added in fp32.
std::vector<at::Tensor> SumOf(const World& world,
                              const std::vector<std::pair<int, std::vector<int>>>& passes) {
  std::vector<at::Tensor> sums = world.Zeros();
  for (const auto& [pass, parameters] : passes) {
    for (const int p : parameters) {
      sums[static_cast<std::size_t>(p)] += world.Gradient(p, pass, 0).to(at::kFloat);
    }
  }
  return sums;
}

bool AllAsPlanned(const World& world) {
  for (std::size_t u = 0; u < world.plan.units.size(); ++u) {
    const layout::Unit& unit = world.plan.units[u].unit;
    if (unit.trainable && world.reducer->Of(static_cast<int>(u)).dtype != unit.dtype) return false;
  }
  return true;
}

std::int64_t Gradients(const World& world, plan::Tier tier) {
  return world.ledger.now(tier)[static_cast<std::size_t>(memory::Tag::kGradients)];
}

TEST(Sums, OfOneMicroStepAreTheGradientsAsTheyCame) {
  ForEachWorld([](World& world) {
    for (int step = 0; step < 3; ++step) {
      Pass(world, step, world.All());
      world.reducer->Complete();
      EXPECT_TRUE(AllAsPlanned(world));
      world.ExpectSums(SumOf(world, {{step, world.All()}}));
      world.reducer->Clear();
    }
  });
}

TEST(Sums, LieOnTheTierOfThePlanInTheWeightsType) {
  ForEachWorld([](World& world) {
    Pass(world, 0, world.All());
    world.reducer->Complete();
    for (const auto tier : {plan::Tier::kDevice, plan::Tier::kHost}) {
      EXPECT_EQ(Gradients(world, tier),
                world.plan.BytesOfRank(0, tier)[static_cast<std::size_t>(memory::Tag::kGradients)]);
    }
    const std::int64_t trained = 240 + 256 + 16 + 700 + 333 + 24 + 1;
    EXPECT_EQ(Gradients(world, plan::Tier::kDevice) + Gradients(world, plan::Tier::kHost),
              trained * ElementBytes(world.plan.weight_dtype));
  });
}

TEST(Sums, AbsentGradientsAreZeroAfterAStepInWhichTheyCame) {
  ForEachWorld([](World& world) {
    Pass(world, 0, world.All());
    world.reducer->Complete();
    world.reducer->Clear();
    Pass(world, 1, {0, 3, 6});
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{1, {0, 3, 6}}}));
    world.reducer->Clear();
    Pass(world, 2, {});
    world.reducer->Complete();
    world.ExpectSums(world.Zeros());
    world.reducer->Clear();
    Pass(world, 3, {1, 2, 3, 5});
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{3, {1, 2, 3, 5}}}));
    EXPECT_TRUE(AllAsPlanned(world));
  });
}

TEST(Sums, ASecondGradientMakesThemFp32WithTheBitsOfFp32Sums) {
  ForEachWorld([](World& world) {
    const LoggedLines logged;
    for (int pass = 0; pass < 3; ++pass) Pass(world, pass, world.All());
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{0, world.All()}, {1, world.All()}, {2, world.All()}}));
    const bool are_16_bit = world.plan.weight_dtype != DType::kFloat32;
    EXPECT_EQ(logged.Count(kWarning), are_16_bit ? 1 : 0);  // however many units there are
    EXPECT_EQ(AllAsPlanned(world), !are_16_bit);
    std::int64_t wide = 0;
    for (const plan::UnitPlan& unit : world.plan.units) {
      if (unit.unit.trainable) wide += 4 * unit.unit.numel;
    }
    EXPECT_EQ(Gradients(world, plan::Tier::kDevice) + Gradients(world, plan::Tier::kHost), wide);
  });
}

TEST(Sums, SayWhatAPassBroughtAndBelieveWhatARepetitionDid) {
  ForEachWorld([](World& world) {
    Sums& sums = world.reducer->sums();
    const bool is_16_bit = world.plan.weight_dtype != DType::kFloat32;
    EXPECT_TRUE(sums.IsSteady());
    const std::vector<int> some = {world.All().front(), world.All().back()};
    Pass(world, 0, some);
    EXPECT_EQ(sums.IsSteady(), !is_16_bit);
    const std::vector<bool> came = sums.TakeCame();
    for (std::size_t p = 0; p < came.size(); ++p) {
      EXPECT_EQ(came[p], std::ranges::find(some, static_cast<int>(p)) != some.end());
    }
    EXPECT_TRUE(sums.IsSteady());
    sums.NoteCame(came);
    EXPECT_EQ(sums.TakeCame(), came);
    sums.NoteCame(came);
    EXPECT_EQ(sums.layout(), 0);
    Pass(world, 1, some);  // the second gradient of these
    EXPECT_EQ(sums.layout() > 0, is_16_bit);
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{0, some}, {1, some}}));
    world.reducer->Clear();
    EXPECT_TRUE(sums.IsSteady());
  });
}

TEST(Sums, OnlyTheUnitThatGotTwoBecomesFp32) {
  OnWorlds({.stage = 1, .precision = Precision::kBFloat16, .accumulation_steps = 1},
           [](World& world) {
             const LoggedLines logged;
             Pass(world, 0, {0, 3, 5});
             Pass(world, 1, {1, 3});
             world.reducer->Complete();
             world.ExpectSums(SumOf(world, {{0, {0, 3, 5}}, {1, {1, 3}}}));
             for (std::size_t u = 0; u < world.plan.units.size(); ++u) {
               const bool has_two = world.plan.units[u].unit.members.front().parameter == 3;
               EXPECT_EQ(world.reducer->Of(static_cast<int>(u)).dtype,
                         has_two ? DType::kFloat32 : DType::kBFloat16);
             }
             EXPECT_EQ(logged.Count("'d'"), 1);
           });
}

TEST(Sums, StayFp32AndRightInTheStepsAfterwards) {
  ForEachWorld([](World& world) {
    const LoggedLines logged;
    Pass(world, 0, world.All());  // leaves values behind
    world.reducer->Complete();
    world.reducer->Clear();
    Pass(world, 1, {0, 3});
    Pass(world, 2, {3, 5});
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{1, {0, 3}}, {2, {3, 5}}}));
    world.reducer->Clear();
    Pass(world, 3, {3, 6});
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{3, {3, 6}}}));
    world.reducer->Clear();
    Pass(world, 4, world.All());
    Pass(world, 5, {0});
    world.reducer->Complete();
    world.ExpectSums(SumOf(world, {{4, world.All()}, {5, {0}}}));
  });
}

TEST(Sums, OnTheHostHaveTheBitsOfThoseOnTheDevice) {
  for (const int world_size : {1, 2}) {
    for (const Precision precision : kPrecisions) {
      for (const double ratio : {0.0, 0.5, 1.0}) {
        OnWorlds({.world_size = world_size,
                  .stage = 1,
                  .precision = precision,
                  .offload_optimizer = ratio},
                 [ratio](World& world) {
                   for (int step = 0; step < 2; ++step) {
                     for (int pass = 0; pass < 3; ++pass) Pass(world, pass, world.All());
                     world.reducer->Complete();
                     world.ExpectSums(SumOfPasses(world, 3));
                     world.comm.Barrier(11);
                     world.reducer->Clear();
                   }
                   EXPECT_EQ(Gradients(world, plan::Tier::kHost) > 0, ratio > 0);
                   EXPECT_EQ(Gradients(world, plan::Tier::kDevice) > 0, ratio < 1);
                 });
      }
    }
  }
}

}  // namespace
}  // namespace ullage::grads
