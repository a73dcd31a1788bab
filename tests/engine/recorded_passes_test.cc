// Micro-steps as functions of tensors. What is recorded of them on a GPU is compared there
// (scripts/gpu_check.sh).
#include <gtest/gtest.h>
#include <torch/types.h>

#include "engine/support.h"
#include "ullage/error.h"

namespace ullage::testing {
namespace {

constexpr const char* kTwoMicroSteps = R"({"gradient_accumulation_steps": 2})";

std::string HashAfterTwoSteps(const Case& c, bool at_once) {
  std::string hash;
  OnRanks(c.world_size, [&](const std::shared_ptr<Ranks>& ranks) {
    const at::Tensor weight = at::arange(1, 701, at::kFloat).div_(700).set_requires_grad(true);
    ParameterList list;
    list.Add("weight", weight);
    Engine engine(std::move(list), SettingsFor(c, kTwoMicroSteps), ranks);
    // Ranks that are threads share torch's generators.
    const double dropout = c.world_size == 1 ? 0.5 : 0;
    const auto loss = [&](const at::Tensor& x) {
      return at::dropout(weight * x, dropout, /*train=*/true).sum();
    };
    for (int micro_step = 0; micro_step < 4; ++micro_step) {
      const at::Tensor x = at::full({}, 1.5f + static_cast<float>(micro_step + ranks->rank()));
      if (at_once) {
        const auto values = engine.ForwardBackward({x, at::Tensor()}, [&](const auto& inputs) {
          EXPECT_FALSE(inputs[1].defined());
          const at::Tensor value = loss(inputs[0]);
          return std::vector<at::Tensor>{value, value * 2};
        });
        EXPECT_EQ(values.size(), 2u);
        EXPECT_FALSE(values[0].requires_grad());
        EXPECT_EQ(values[1].item<float>(), 2 * values[0].item<float>());
      } else {
        engine.Backward(engine.Forward([&] { return loss(x); }));
      }
      if (engine.IsAccumulationBoundary()) {
        EXPECT_TRUE(engine.Step().applied);
      }
    }
    EXPECT_EQ(engine.applied_steps(), 2);
    EXPECT_EQ(engine.statistics().recorded_launches, 0);
    const std::string own = engine.ParametersSha256();
    if (ranks->rank() == 0) hash = own;
  });
  return hash;
}

TEST(ForwardBackward, IsForwardAndThenBackward) {
  for (const int world_size : {1, 2}) {
    const Case c = {.stage = 3, .world_size = world_size};
    EXPECT_EQ(HashAfterTwoSteps(c, true), HashAfterTwoSteps(c, false)) << world_size;
  }
}

TEST(CudaGraphs, AreRefusedByNameWhereTheyWereAskedFor) {
  OnRanks(1, [](const std::shared_ptr<Ranks>& ranks) {
    ParameterList list;
    list.Add("weight", at::ones({3}).set_requires_grad(true));
    try {
      const Engine engine(std::move(list), SettingsFor({}, R"({"ullage": {"cuda_graphs": "on"}})"),
                          ranks);
      FAIL() << "there is no GPU";
    } catch (const ConfigError& error) {
      EXPECT_EQ(
          std::string(error.what()).substr(0, 78),
          "ullage.cuda_graphs: \"on\" cannot be, because operators run on the CPU\nhint: set");
    }
  });
}

}  // namespace
}  // namespace ullage::testing
