// What a caller does beside Forward, Backward and Step: backward passes of its own, whole values,
// groups by name, another number of accumulation steps.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "engine/support.h"

namespace ullage::testing {
namespace {

struct Pair {
  at::Tensor a = at::arange(1, 701, at::kFloat).div_(700).set_requires_grad(true);
  at::Tensor b = at::full({3}, 0.5f).set_requires_grad(true);

  ParameterList List() const {
    ParameterList list;
    list.Add("a", a);
    list.Add("b", b);
    return list;
  }
  at::Tensor Loss(double x) const { return (a * x).sum() * b.sum(); }
};

constexpr const char* kHalf = R"({"fp16": {"enabled": true, "initial_scale_power": 4}})";

std::vector<Case> FewCases() {
  std::vector<Case> cases;
  for (const int world_size : {1, 2}) {
    for (const int stage : {0, 1, 2, 3})
      cases.push_back({.stage = stage, .world_size = world_size});
  }
  cases.push_back({.stage = 3, .offload_optimizer = 1.0, .offload_param = true});
  return cases;
}

TEST(Callers, ABackwardPassOfTheirOwnGivesTheSameBits) {
  for (const Case& c : FewCases()) {
    SCOPED_TRACE(Describe(c));
    std::vector<std::string> hashes(2);
    for (const bool own : {false, true}) {
      OnRanks(c.world_size, [&](const std::shared_ptr<Ranks>& ranks) {
        const Pair pair;
        Engine engine(pair.List(), SettingsFor(c, R"({"gradient_accumulation_steps": 2})"), ranks);
        for (const double x : {1.5, 2.25}) {
          const at::Tensor loss = engine.Forward([&] { return pair.Loss(x + ranks->rank()); });
          own ? loss.backward() : static_cast<void>(engine.Backward(loss));
        }
        EXPECT_TRUE(engine.IsAccumulationBoundary());
        EXPECT_TRUE(engine.Step().applied);
        const std::string hash = engine.ParametersSha256();
        if (ranks->rank() == 0) hashes[own] = hash;
      });
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

TEST(Callers, ABackwardPassOfTheirOwnNeedsTheLossScale) {
  OnRanks(1, [](const std::shared_ptr<Ranks>& ranks) {
    const Pair pair;
    Engine engine(pair.List(), SettingsFor({}, kHalf), ranks);
    const auto loss = [&] { return engine.Forward([&] { return pair.Loss(1); }); };
    EXPECT_THROW(loss().backward(), StateError);
    engine.ClearGradients();
    engine.Scale(loss()).backward();
    EXPECT_TRUE(at::allclose(engine.ReadWhole("b", "gradient"),
                             at::full({3}, pair.a.sum().item<double>()), 1e-2));
    EXPECT_EQ(engine.Step().loss_scale, 16);
  });
}

TEST(Callers, GoOnAfterABackwardPassThatFailedWhenItsGradientsAreDropped) {
  std::vector<std::string> hashes;
  for (const bool fails : {false, true}) {
    for (const bool own : {false, true}) {
      OnRanks(1, [&](const std::shared_ptr<Ranks>& ranks) {
        const Pair pair;
        Engine engine(pair.List(), SettingsFor({.stage = 3}), ranks);
        const auto pass = [&] {
          const at::Tensor loss = engine.Forward([&] { return pair.Loss(2); });
          own ? loss.backward() : static_cast<void>(engine.Backward(loss));
        };
        if (fails) {
          const unsigned hook = pair.a.register_hook(
              [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no memory"); });
          EXPECT_THROW(pass(), std::runtime_error);
          if (!own) {
            EXPECT_THROW(engine.Step(), StateError);  // gradients may be missing
          }
          engine.ClearGradients();
          pair.a.remove_hook(hook);
        }
        pass();
        EXPECT_TRUE(engine.Step().applied);
        hashes.push_back(engine.ParametersSha256());
      });
    }
  }
  EXPECT_EQ(hashes, std::vector<std::string>(4, hashes.front()));
}

TEST(Callers, ReadTheMeanGradientAndReplaceIt) {
  for (const Case& c : FewCases()) {
    SCOPED_TRACE(Describe(c));
    OnRanks(c.world_size, [&](const std::shared_ptr<Ranks>& ranks) {
      const Pair pair;
      Engine engine(pair.List(), SettingsFor(c, R"({"gradient_accumulation_steps": 2,
                                       "optimizer": {"type": "SGD", "params": {"lr": 1.0}}})"),
                    ranks);
      EXPECT_THROW(engine.ReadWhole("a", "gradient"), StateError);
      for (const double x : {1.0, 3.0}) {
        engine.Backward(engine.Forward([&] { return pair.Loss(x + ranks->rank()); }));
      }
      const double mean = 1.5 * (2 + 0.5 * (ranks->world_size() - 1));  // sum of b times mean x
      EXPECT_TRUE(at::allclose(engine.ReadWhole("a", "gradient"), at::full({700}, mean)));
      engine.WriteWhole("a", "gradient", at::full({700}, 0.25));
      engine.WriteWhole("b", "gradient", at::zeros({3}));
      EXPECT_NEAR(engine.Step().grad_norm, std::sqrt(700 * 0.0625), 1e-6);
      EXPECT_TRUE(at::allclose(engine.ReadWhole("a", "value"),
                               at::arange(1, 701, at::kFloat).div_(700) - 0.25));
      EXPECT_TRUE(at::equal(engine.ReadWhole("b", "value"), at::full({3}, 0.5f)));
    });
  }
}

TEST(Callers, WhatTheyWriteIsWhatEveryRankComputesWith) {
  for (const Case& c : FewCases()) {
    SCOPED_TRACE(Describe(c));
    OnRanks(c.world_size, [&](const std::shared_ptr<Ranks>& ranks) {
      const Pair pair;
      Engine engine(pair.List(), SettingsFor(c, R"({"optimizer": {"type": "AdamW"}})"), ranks);
      const at::Tensor values = at::arange(0, 700, at::kFloat).mul_(0.001);
      engine.WriteWhole("a", "value", values);
      EXPECT_TRUE(at::equal(engine.ReadWhole("a", "value"), values));
      EXPECT_TRUE(at::equal(pair.a.detach() + 0, values));
      engine.WriteWhole("a", "exp_avg", values * 2);
      EXPECT_TRUE(at::equal(engine.ReadWhole("a", "exp_avg"), values * 2));
      EXPECT_THROW(engine.ReadWhole("a", "variance"), ConfigError);
      EXPECT_THROW(engine.ReadWhole("c", "value"), ConfigError);
      EXPECT_THROW(engine.WriteWhole("a", "value", at::zeros({3})), ConfigError);
    });
  }
}

TEST(Callers, GroupsByNameHaveRatesOfTheirOwn) {
  OnRanks(1, [](const std::shared_ptr<Ranks>& ranks) {
    const auto make = [&](const Pair& pair, std::vector<NamedGroup> groups) {
      EngineOptions options;
      options.groups = std::move(groups);
      return std::make_unique<Engine>(
          pair.List(), SettingsFor({}, R"({"optimizer": {"type": "SGD", "params": {"lr": 1.0}}})"),
          ranks, options);
    };
    const Pair pair;
    const auto engine = make(pair, {{"slow", {"a"}, 0.5, 0}, {"fast", {"b"}, 2, 0}});
    EXPECT_EQ(engine->groups()[1].parameters, std::vector<std::string>{"b"});
    engine->Backward(engine->Forward([&] { return (pair.a.sum() + pair.b.sum()); }));
    engine->Step();
    EXPECT_TRUE(at::allclose(engine->ReadWhole("b", "value"), at::full({3}, -1.5)));
    EXPECT_TRUE(at::allclose(engine->ReadWhole("a", "value"),
                             at::arange(1, 701, at::kFloat).div_(700) - 0.5));
    engine->SetGroup(1, 0.25, 0);
    engine->Backward(engine->Forward([&] { return (pair.a.sum() + pair.b.sum()); }));
    engine->Step();
    EXPECT_TRUE(at::allclose(engine->ReadWhole("b", "value"), at::full({3}, -1.75)));
    EXPECT_THROW(engine->SetGroup(2, 1, 0), ConfigError);

    const Pair other;
    EXPECT_THROW(make(other, {{"all", {"a"}, 1, 0}}), ConfigError);  // b is trained by none
    EXPECT_THROW(make(other, {{"all", {"a", "b", "c"}, 1, 0}}), ConfigError);
    EXPECT_THROW(make(other, {{"x", {"a", "b"}, 1, 0}, {"y", {"b"}, 1, 0}}), ConfigError);
  });
}

TEST(Callers, AccumulationStepsChangeBetweenSteps) {
  OnRanks(1, [](const std::shared_ptr<Ranks>& ranks) {
    const Pair pair;
    Engine engine(pair.List(), SettingsFor({}), ranks);
    engine.SetAccumulationSteps(3);
    EXPECT_EQ(engine.batch_sizes().train_batch, 3);
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(engine.IsAccumulationBoundary());
      engine.Backward(engine.Forward([&] { return pair.Loss(3); }));
    }
    EXPECT_TRUE(at::allclose(engine.ReadWhole("a", "gradient"), at::full({700}, 4.5)));
    EXPECT_THROW(engine.SetAccumulationSteps(2), StateError);
    EXPECT_THROW(engine.SetAccumulationSteps(0), ConfigError);
  });
}

}  // namespace
}  // namespace ullage::testing
