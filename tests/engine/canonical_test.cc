// The canonical small cases: right for every stage, world size, bucket and unit size.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "engine/support.h"

namespace ullage::testing {
namespace {

at::Tensor Parameter(const at::Tensor& values) {
  return values.clone().set_requires_grad(true);
}

// fp32 values of one parameter, gathered.
at::Tensor Values(Engine& engine, const std::string& name) {
  at::Tensor values;
  engine.ForEachParameter([&](const Engine::ParameterPiece& piece) {
    if (*piece.name != name) return;
    if (piece.first == 0)
      values = at::empty(at::IntArrayRef(piece.shape.data(), piece.shape.size()));
    std::copy(piece.values.begin(), piece.values.end(), values.data_ptr<float>() + piece.first);
  });
  return values;
}

void ExpectNear(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance)
      << "got " << actual << "\nwant " << expected;
}

// Steps of 1 and no weight decay turn SGD into a probe: the parameter moves by the mean gradient.
constexpr const char* kProbe = R"({"optimizer": {"params": {"lr": 1.0}}})";

TEST(Canonical, C1MeanOverRanksAndMicroStepsIsClippedOnce) {
  for (const Case& c : AllCases({2})) {
    SCOPED_TRACE(Describe(c));
    OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
      at::Tensor w = Parameter(torch::tensor({{1.f, -1.f}}));
      ParameterList list;
      list.Add("w", w);
      Engine engine(
          std::move(list),
          SettingsFor(c, R"({"gradient_accumulation_steps": 2, "gradient_clipping": 1.0})"), ranks);
      const float inputs[2][2][2] = {{{1, 0}, {3, 0}}, {{0, 2}, {0, 6}}};
      for (const auto& input : inputs[ranks->rank()]) {
        const at::Tensor x = torch::tensor({{input[0], input[1]}});
        engine.Backward(engine.Forward([&] { return at::matmul(x, w.t()).mean(); }));
      }
      EXPECT_TRUE(engine.IsAccumulationBoundary());
      const StepResult step = engine.Step();
      EXPECT_TRUE(step.applied);
      EXPECT_NEAR(step.grad_norm, 2.2360680, 1e-6);
      EXPECT_NEAR(step.clip_coef, 0.4472134, 1e-6);
      ExpectNear(Values(engine, "w"), torch::tensor({{0.9552787f, -1.0894427f}}), 1e-6);
    });
  }
}

TEST(Canonical, C2SharedLayerSumsItsUses) {
  for (const Case& c : AllCases({2})) {
    for (const bool two_backwards : {false, true}) {
      SCOPED_TRACE(Describe(c) + (two_backwards ? ", two backwards" : ""));
      OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
        at::Tensor w = Parameter(at::zeros({2, 2}));
        ParameterList list;
        list.Add("w", w);
        Engine engine(std::move(list), SettingsFor(c, kProbe), ranks);
        const float base = ranks->rank() == 0 ? 1.f : 5.f;
        const at::Tensor a = torch::tensor({base, base + 1});
        const at::Tensor b = torch::tensor({base + 2, base + 3});
        const auto f = [&](const at::Tensor& x) { return at::matmul(w, x).sum(); };
        if (two_backwards) {
          engine.Backward(engine.Forward([&] { return f(a); }));
          engine.Backward(engine.Forward([&] { return f(b); }));
        } else {
          engine.Backward(engine.Forward([&] { return f(a) + f(b); }));
        }
        EXPECT_NEAR(engine.Step().grad_norm, 18.110770, 1e-5);
        ExpectNear(Values(engine, "w"), torch::tensor({{-8.f, -10.f}, {-8.f, -10.f}}), 0);
      });
    }
  }
}

TEST(Canonical, C3MicroStepsAccumulateInFp32) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : {1, 2}) {
      const Case c{stage, world_size};
      SCOPED_TRACE(Describe(c));
      OnRanks(world_size, [&](std::shared_ptr<Ranks> ranks) {
        at::Tensor w = Parameter(torch::tensor({0.5f}));
        ParameterList list;
        list.Add("w", w);
        const std::string extra =
            R"({"bf16": {"enabled": true}, "optimizer": {"params": {"lr": 1.0}},
          "gradient_accumulation_steps": )" +
            std::to_string(256 / world_size) + "}";
        Engine engine(std::move(list), SettingsFor(c, extra), ranks);
        for (int micro = 0; micro < 256 / world_size; ++micro) {
          const bool is_first = micro == 0 && ranks->rank() == 0;
          const at::Tensor x = at::full({1}, is_first ? 1.0 : 0x1p-9, at::kBFloat16);
          engine.Backward(engine.Forward([&] { return (w * x).sum(); }));
        }
        EXPECT_DOUBLE_EQ(engine.Step().grad_norm, 0.00585174560546875);
        EXPECT_EQ(Values(engine, "w").item<float>(), 0.5f - 0.00585174560546875f);
      });
    }
  }
}

TEST(Canonical, C4UnusedParametersStayAndBranchesOfOneRankCount) {
  const char* adam = R"({"gradient_accumulation_steps": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.1}}})";
  for (const Case& c : AllCases()) {
    for (const bool only_first_rank : {false, true}) {
      SCOPED_TRACE(Describe(c));
      OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
        at::Tensor bias = Parameter(at::zeros({1}));
        at::Tensor unused = Parameter(torch::tensor({0.3f}));
        ParameterList list;
        list.Add("bias", bias);
        list.Add("unused", unused);
        Engine engine(std::move(list), SettingsFor(c, adam), ranks);
        const bool uses = !only_first_rank || ranks->rank() == 0;
        for (int micro = 0; micro < 4; ++micro) {
          const at::Tensor x = at::ones({1});
          engine.Backward(engine.Forward([&] { return uses ? (x + bias).mean() : x.mean(); }));
        }
        EXPECT_TRUE(engine.Step().applied);
        ExpectNear(Values(engine, "bias"), torch::tensor({-0.1f}), 1e-7);
        EXPECT_EQ(Values(engine, "unused").item<float>(), 0.3f);
      });
    }
  }
}

TEST(Canonical, C6TiedParametersAreCountedOnce) {
  for (const bool tied_first : {true, false}) {
    SCOPED_TRACE(tied_first);
    OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
      at::Tensor embedding = Parameter(at::ones({4, 2}));
      at::Tensor other = Parameter(at::ones({2}));
      ParameterList list;
      if (!tied_first) list.Add("other", other);
      list.Add("emb.weight", embedding);
      list.Add("head.weight", embedding);
      Engine engine(
          std::move(list),
          SettingsFor({3, 1}, R"({"optimizer": {"type": "Adam", "params": {"lr": 0.1}}})"), ranks);
      std::int64_t state = 0;
      for (const auto& [tag, bytes] : engine.memory().now) {
        if (tag == "weights" || tag == "master" || tag == "moments" || tag == "gradients") {
          state += bytes;
        }
      }
      EXPECT_EQ(state, (tied_first ? 8 : 10) * 16);
      const at::Tensor ids = torch::tensor({1L, 3L});
      engine.Backward(engine.Forward(
          [&] { return at::matmul(at::embedding(embedding, ids), embedding.t()).sum(); }));
      // Row 1 and 3 are looked up (gradient: column sums of the head, 4 each) and every row is
      // a head (gradient: sum of the two looked-up rows, 2 each).
      EXPECT_NEAR(engine.Step().grad_norm, std::sqrt(4 * 36 + 4 * 4), 1e-6);
    });
  }
}

TEST(Canonical, C7EmptyAndTinyParametersAreOrdinary) {
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(Describe(c));
    OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
      std::vector<at::Tensor> parameters;
      ParameterList list;
      for (const std::vector<std::int64_t>& shape :
           std::vector<std::vector<std::int64_t>>{{8}, {0}, {24}, {1}, {0, 4}}) {
        parameters.push_back(Parameter(at::ones(shape)));
        list.Add("p" + std::to_string(parameters.size()), parameters.back());
      }
      Engine engine(std::move(list), SettingsFor(c, kProbe), ranks);
      const float scale = static_cast<float>(ranks->rank() + 1);
      engine.Backward(engine.Forward([&] {
        at::Tensor sum = at::zeros({});
        for (const at::Tensor& parameter : parameters) sum = sum + (parameter * scale).sum();
        return sum;
      }));
      const double mean = (c.world_size + 1) / 2.0;
      EXPECT_NEAR(engine.Step().grad_norm, mean * std::sqrt(33.0), 1e-5);
      ExpectNear(Values(engine, "p1"), at::full({8}, 1 - mean), 1e-6);
      ExpectNear(Values(engine, "p3"), at::full({24}, 1 - mean), 1e-6);
      ExpectNear(Values(engine, "p4"), at::full({1}, 1 - mean), 1e-6);
      EXPECT_EQ(Values(engine, "p2").numel(), 0);
    });
  }
}

TEST(Canonical, C8ElementwiseChainGivesItsGradientsOnceAndTwice) {
  const auto weight = [](int i) {
    const at::Tensor w = at::full({3, 5}, 2.f * static_cast<float>(i + 1));
    w.view({15}).narrow(0, 0, 8).fill_(static_cast<float>(i + 1));
    return w;
  };
  const auto split = [](float small, float large) {
    const at::Tensor values = at::full({3, 5}, large);
    values.view({15}).narrow(0, 0, 8).fill_(small);
    return values;
  };
  for (const Case& c : AllCases({2})) {
    for (const int backwards : {1, 2}) {
      SCOPED_TRACE(Describe(c));
      OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
        at::Tensor w[3];
        ParameterList list;
        for (int i = 0; i < 3; ++i) {
          w[i] = Parameter(weight(i));
          list.Add("w" + std::to_string(i + 1), w[i]);
        }
        Engine engine(std::move(list), SettingsFor(c, kProbe), ranks);
        for (int i = 0; i < backwards; ++i) {
          const at::Tensor loss = engine.Forward([&] {
            const at::Tensor out = w[2] * (w[1] * (w[0] * at::ones({3, 5})));
            return (out - 1).abs().sum();
          });
          EXPECT_EQ(loss.item<float>(), 8 * 5 + 7 * 47);
          engine.Backward(loss);
        }
        engine.Step();
        const auto factor = static_cast<float>(backwards);
        ExpectNear(Values(engine, "w3"), weight(2) - split(2, 8) * factor, 1e-5);
        ExpectNear(Values(engine, "w2"), weight(1) - split(3, 12) * factor, 1e-5);
        ExpectNear(Values(engine, "w1"), weight(0) - split(6, 24) * factor, 1e-5);
      });
    }
  }
}

TEST(Canonical, C9AdamMovesByTheLearningRateAtFirst) {
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(Describe(c));
    OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
      at::Tensor w = Parameter(at::ones({1}));
      ParameterList list;
      list.Add("w", w);
      Engine engine(std::move(list),
                    SettingsFor(c, R"({"optimizer": {"type": "Adam", "params": {"lr": 0.1}}})"),
                    ranks);
      engine.Backward(engine.Forward([&] { return w.sum(); }));
      engine.Step();
      ExpectNear(Values(engine, "w"), torch::tensor({0.9f}), 1e-7);
      EXPECT_EQ(engine.applied_steps(), 1);
    });
  }
}

TEST(Canonical, C10LossScaleFallsThenFails) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : {1, 2}) {
      const Case c{stage, world_size};
      SCOPED_TRACE(Describe(c));
      OnRanks(world_size, [&](std::shared_ptr<Ranks> ranks) {
        at::Tensor w = Parameter(torch::tensor({0.25f, 0.5f}));
        ParameterList list;
        list.Add("layer.w", w);
        const char* fp16 = R"({"fp16": {"enabled": true, "initial_scale_power": 4, "hysteresis": 2,
                                "loss_scale_window": 2, "min_loss_scale": 1}})";
        Engine engine(std::move(list), SettingsFor(c, fp16), ranks);
        const std::string before = engine.ParametersSha256();
        for (const double scale : {16., 16., 8., 4., 2.}) {
          engine.Backward(engine.Forward([&] { return (w * INFINITY).sum().to(at::kFloat); }));
          const StepResult step = engine.Step();
          EXPECT_FALSE(step.applied);
          EXPECT_EQ(step.loss_scale, scale);
          EXPECT_EQ(step.overflowed, "layer.w");
        }
        EXPECT_EQ(engine.loss_scale(), 1);
        EXPECT_EQ(engine.skipped_steps(), 5);
        EXPECT_EQ(engine.ParametersSha256(), before);
        engine.Backward(engine.Forward([&] { return (w * INFINITY).sum().to(at::kFloat); }));
        EXPECT_THROW(engine.Step(), StateError);
      });
    }
  }
}

TEST(Canonical, C12ExpertsOfOneRankAreMeansWithZeros) {
  for (const Case& c : AllCases({2})) {
    SCOPED_TRACE(Describe(c));
    OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
      at::Tensor experts[2];
      ParameterList list;
      for (int i = 0; i < 2; ++i) {
        experts[i] = Parameter(at::ones({3}));
        list.Add("expert" + std::to_string(i), experts[i]);
      }
      Engine engine(std::move(list), SettingsFor(c, kProbe), ranks);
      const at::Tensor& mine = experts[ranks->rank()];
      engine.Backward(engine.Forward([&] { return (mine * 2.0).sum(); }));
      engine.Step();
      ExpectNear(Values(engine, "expert0"), at::zeros({3}), 1e-7);
      ExpectNear(Values(engine, "expert1"), at::zeros({3}), 1e-7);
    });
  }
}

}  // namespace
}  // namespace ullage::testing
