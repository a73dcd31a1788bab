// A budget for the device's memory decides where state and weights lie, and nothing else.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include "engine/support.h"
#include "engine/training.h"
#include "ullage/error.h"

namespace ullage::testing {
namespace {

const char* const kBf16 = R"(, "bf16": {"enabled": true})";

std::string Budget(std::int64_t bytes) {
  return std::string(kBf16) + R"(, "ullage": {"unit_size": 1, "timeout_seconds": 60,
      "device_memory": )" +
         std::to_string(bytes) + "}";
}

int UnitsOnHost(const Engine& engine) {
  int count = 0;
  const nlohmann::json plan = nlohmann::json::parse(engine.PlanJson());
  for (const auto& unit : plan["units"]) {
    count += unit["home"] == "host" ? 1 : 0;
  }
  return count;
}

TEST(Budget, NeverChangesABitAndIsKept) {
  const Case c = {0, 1, 1'000'000, 1};
  const Outcome expected = Train(c, kBf16);
  int with_state = 0, with_weights = 0, refused = 0;
  // 22,272 B hold everything, 5,248 the weights, and 4,224 the two largest units.
  for (const int budget : {22'272, 22'271, 15'000, 8'000, 5'248, 5'247, 4'800, 4'224, 4'223, 10}) {
    SCOPED_TRACE(budget);
    try {
      const Outcome outcome = Train(c, Budget(budget));
      EXPECT_EQ(outcome.sha, expected.sha);
      EXPECT_EQ(outcome.norms, expected.norms);
      EXPECT_LE(outcome.most_on_device, budget);
      with_state += outcome.statistics.gathers == 0 ? 1 : 0;
      with_weights += outcome.statistics.gathers > 0 ? 1 : 0;
    } catch (const OutOfMemoryError&) {
      ++refused;
    }
  }
  EXPECT_EQ(with_state, 5);
  EXPECT_EQ(with_weights, 3);
  EXPECT_EQ(refused, 2);
}

TEST(Budget, NeverChangesABitOnTwoRanksAtAnyStage) {
  const Outcome expected = Train({0, 1}, kBf16);
  for (const int stage : {0, 1, 2, 3}) {
    int kept = 0;
    for (std::int64_t budget = 50'000; budget > 20'000; budget -= 6'000) {
      SCOPED_TRACE(budget);
      try {
        const Outcome outcome = Train({stage, 2, 1'000'000, 1}, Budget(budget));
        EXPECT_EQ(outcome.sha, expected.sha);
        EXPECT_LE(outcome.most_on_device, budget);
        ++kept;
      } catch (const OutOfMemoryError&) {
      }
    }
    EXPECT_GT(kept, 1) << stage;
  }
}

TEST(Budget, OfTheRankWhoseOperatorsNeedMostDecidesForAll) {
  const Case c{1, 2, 1'000'000, 1};
  OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
    std::int64_t needed = 0;  // with everything on the device
    {
      const Model model;
      const Engine engine(model.List(), SettingsFor(c), ranks);
      for (const auto& [tag, bytes] : engine.memory().on_device) needed += bytes;
    }
    const std::string budget =
        fmt::format(R"({{"ullage": {{"device_memory": {}}}}})", needed + 1000);
    for (const std::int64_t most : {0, 3000}) {
      const Model model;
      EngineOptions options;
      options.operator_bytes = ranks->rank() == 1 ? most : 0;
      const Engine engine(model.List(), SettingsFor(c, budget), ranks, options);
      EXPECT_EQ(UnitsOnHost(engine) > 0, most > 0) << needed;
    }
  });
}

TEST(Budget, IsToldAtTheStartAndSoIsThatNothingIsKeptForOperators) {
  OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
    const Settings settings = SettingsFor({0, 1}, R"({"ullage": {"device_memory": "1MiB"}})");
    const auto lines = [&](std::int64_t operator_bytes) {
      const Model model;
      EngineOptions options;
      options.operator_bytes = operator_bytes;
      std::string text;
      for (const std::string& line : Engine(model.List(), settings, ranks, options).StartLines()) {
        text += line + "\n";
      }
      return text;
    };
    EXPECT_NE(lines(0).find("nothing is kept for what operators hold"), std::string::npos);
    EXPECT_EQ(lines(1024).find("nothing is kept"), std::string::npos);
    EXPECT_NE(lines(1024).find("ullage.device_memory 1.00 MiB: planned are"), std::string::npos);
    EXPECT_NE(lines(1024).find("all weights and optimizer state fit"), std::string::npos);
  });
}

TEST(Device, OutOfMemoryInAForwardOrBackwardNamesSizeTagsAndRemedy) {
  const auto refuse = [] {
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total ...");
  };
  const auto expect = [](const std::function<void()>& run, const std::string& phase) {
    try {
      run();
      ADD_FAILURE() << phase;
    } catch (const ullage::OutOfMemoryError& error) {
      const std::string message = error.what();
      for (const std::string& part :
           {"out of device memory in the " + phase + ": an operator was refused 2.50 GiB",
            std::string("most of it for weights 9.56 KiB"), std::string("offload_optimizer moves"),
            std::string("ullage.recompute")}) {
        EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
      }
    }
  };
  OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
    const Model model;
    Engine engine(model.List(), SettingsFor({0, 1}), ranks);
    expect(
        [&] {
          engine.Forward([&]() -> at::Tensor {
            refuse();
            return {};
          });
        },
        "forward");
    at::Tensor hooked = at::ones({19}).requires_grad_();
    hooked.register_hook([&](const at::Tensor&) { refuse(); });
    const at::Tensor loss = engine.Forward([&] { return model.Loss(hooked.view({1, 19}), true); });
    expect([&] { engine.Backward(loss); }, "backward");
  });
}

TEST(Engine, AllocatesNothingAfterTheSecondStep) {
  for (const int world_size : {1, 2}) {
    for (const Case& base :
         {Case{1, world_size, 1'000'000, 1}, Case{3, world_size, 1'000'000, 1500}}) {
      for (const Case& c : EachTier(base)) {
        SCOPED_TRACE(Describe(c));
        OnRanks(world_size, [&](std::shared_ptr<Ranks> ranks) {
          const Model model;
          Engine engine(model.List(), SettingsFor(c, R"({"bf16": {"enabled": true}})"), ranks);
          std::int64_t after_second = 0;
          for (int step = 1; step <= 5; ++step) {
            const at::Tensor x = at::ones({2, 19}).to(model[0].scalar_type());
            engine.Backward(engine.Forward([&] { return model.Loss(x, true).to(at::kFloat); }));
            engine.Step();
            if (step == 2) after_second = engine.statistics().allocations;
          }
          EXPECT_GT(after_second, 0);
          EXPECT_EQ(engine.statistics().allocations, after_second);
        });
      }
    }
  }
}

}  // namespace
}  // namespace ullage::testing
