// Placement never changes a bit; the bytes are those of the plan.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <tuple>

#include "engine/support.h"
#include "engine/training.h"
#include "memory/process.h"

namespace ullage::testing {
namespace {

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";

TEST(Placement, StageUnitAndBucketNeverChangeABit) {
  for (const char* precision : {"", kBf16}) {
    for (const int world_size : {1, 2, 4}) {
      const Outcome expected = Train({0, world_size}, precision);
      EXPECT_EQ(expected.norms.size(), 3u);
      for (const Case& c : AllCases({world_size})) {
        SCOPED_TRACE(Describe(c));
        const Outcome outcome = Train(c, precision);
        EXPECT_EQ(outcome.sha, expected.sha);
        EXPECT_EQ(outcome.norms, expected.norms);
      }
    }
  }
}

TEST(Placement, RanksAndMicroStepsAreInterchangeable) {
  for (const char* precision : {"", kBf16}) {
    const std::string one = Train({0, 1}, precision).sha;
    EXPECT_EQ(Train({2, 2}, precision).sha, one);
    EXPECT_EQ(Train({3, 2}, precision).sha, one);
    EXPECT_EQ(Train({3, 4}, precision).sha, one);
    EXPECT_EQ(Train({1, 4}, precision).sha, one);
  }
}

TEST(Bytes, AreThoseOfThePlanAtEveryStage) {
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(Describe(c));
    const Outcome outcome = Train(c, kBf16);
    for (std::size_t rank = 0; rank < outcome.peak.size(); ++rank) {
      for (const auto& [tag, bytes] : outcome.planned[rank]) {
        if (tag != "data") {
          EXPECT_EQ(outcome.peak[rank].at(tag), bytes) << tag << " of rank " << rank;
        }
      }
    }
  }
}

TEST(Bytes, OfStateAreTheFormulasWithinPadding) {
  const std::int64_t trainable = 37 * 19 + 37 + 3 * 37 + 37 + 5 * 37 + 5, frozen = 37 * 37;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : {1, 2, 4}) {
      // What a bf16 weight lacks of its master is the lower half of the bits.
      const Outcome outcome = Train({stage, world_size}, kBf16);
      Bytes sum;
      for (const Bytes& rank : outcome.peak) {
        for (const auto& [tag, bytes] : rank) sum[tag] += bytes;
      }
      SCOPED_TRACE(Describe({stage, world_size}));
      EXPECT_EQ(sum["weights"], 2 * (trainable + frozen) * (stage == 3 ? 1 : world_size));
      EXPECT_EQ(sum["master"], 2 * trainable * (stage == 0 ? world_size : 1));
      EXPECT_EQ(sum["moments"], 8 * trainable * (stage == 0 ? world_size : 1));
      EXPECT_EQ(sum["gradients"], 4 * trainable);
    }
  }
}

TEST(Bytes, OfOneRankAndOneMicroStepAreTwelveOrSixteenAnElement) {
  // Weight and what it lacks of the master, two moments, and the gradient as it comes.
  const std::int64_t trainable = 37 * 19 + 37 + 3 * 37 + 37 + 5 * 37 + 5, frozen = 37 * 37;
  for (const auto& [precision, weight, master, gradient] :
       {std::tuple{"", 4, 0, 4}, {kBf16, 2, 2, 2}}) {
    const Bytes peak = Train({0, 1}, precision, /*micro_batches=*/1).peak.front();
    EXPECT_EQ(peak.at("weights"), weight * (trainable + frozen));
    EXPECT_EQ(peak.at("master"), master * trainable);
    EXPECT_EQ(peak.at("moments"), 8 * trainable);
    EXPECT_EQ(peak.at("gradients"), gradient * trainable);
  }
}

TEST(Bytes, DoNotGrowWithAccumulation) {
  for (const int stage : {0, 3}) {
    EXPECT_EQ(Train({stage, 2}, "", 4).peak, Train({stage, 2}, "", 16).peak);
  }
}

TEST(DryRun, CountsWhatARealRunHolds) {
  for (const char* precision : {"", kBf16}) {
    for (const Case& c : AllCases({1, 2})) {
      if (c.bucket_numel == 1 || c.bucket_numel == 3) continue;
      SCOPED_TRACE(Describe(c));
      const Outcome real = Train(c, precision);
      for (int rank = 0; rank < c.world_size; ++rank) {
        const Outcome dry = TrainDry(c, rank, precision);
        for (const auto& [tag, bytes] : dry.peak.front()) {
          if (tag != "data") {
            EXPECT_EQ(bytes, real.peak[static_cast<std::size_t>(rank)].at(tag)) << tag;
          }
        }
      }
    }
  }
}

TEST(Engine, LeavesNothingBehindWhenItEnds) {
  std::int64_t after_second = 0;
  for (int round = 0; round < 20; ++round) {
    Train({round % 4, 2});
    if (round == 1) after_second = memory::ResidentBytes();
  }
  EXPECT_LT(memory::ResidentBytes() - after_second, 2 << 20);
}

TEST(Engine, GivesWholeParametersBackAsOrdinaryTensors) {
  Model model;
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : model.parameters) before.push_back(tensor.detach().clone());
  OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
    Engine engine(model.List(), SettingsFor({3, 1}), ranks);
  });
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(model[i].equal(before[i]));
    EXPECT_NE(model[i].data_ptr(), nullptr);
  }
}

TEST(Engine, RefusesBytesOfSlicedParametersByName) {
  OnRanks(2, [](std::shared_ptr<Ranks> ranks) {
    Model model;
    Engine engine(model.List(), SettingsFor({3, 2}), ranks);
    try {
      (void)model[0].data_ptr();
      ADD_FAILURE() << "raw access succeeded";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("in.weight"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("hint:"), std::string::npos) << error.what();
    }
    const auto gathered = engine.Gather({"in.weight"});
    EXPECT_NE(model[0].data_ptr(), nullptr);
  });
}

TEST(Engine, KeepsWritesOfAllRanksAtEveryStage) {
  for (const char* precision : {"", kBf16}) {
    for (const Case& c : AllCases({2, 4})) {
      SCOPED_TRACE(Describe(c));
      OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
        at::Tensor w = at::ones({200}).set_requires_grad(true);
        ParameterList list;
        list.Add("w", w);
        Engine engine(std::move(list),
                      SettingsFor(c, std::string("{\"bf16\": {\"enabled\": ") +
                                         (*precision ? "true" : "false") + "}}"),
                      ranks);
        {
          at::NoGradGuard no_grad;
          w.add_(1);
          w.mul_(at::arange(200).to(w.scalar_type()));
        }
        engine.Backward(engine.Forward([&] { return w.to(at::kFloat).sum(); }));
        engine.Step();  // SGD with lr 0.1 and gradient 1
        engine.ForEachParameter([&](const Engine::ParameterPiece& piece) {
          for (std::size_t i = 0; i < piece.values.size(); ++i) {
            const auto element = static_cast<float>(piece.first + static_cast<std::int64_t>(i));
            const float written = at::full({}, 2 * element).to(w.scalar_type()).item<float>();
            EXPECT_EQ(piece.values[i], written - 0.1f * 1.0f);
          }
        });
      });
    }
  }
}

TEST(Engine, AStaleGraphIsAnErrorAndNotAWrongGradient) {
  OnRanks(1, [](std::shared_ptr<Ranks> ranks) {
    Model model;
    Engine engine(model.List(), SettingsFor({3, 1}), ranks);
    const at::Tensor stale = engine.Forward([&] { return model.Loss(at::ones({2, 19}), true); });
    engine.Backward(engine.Forward([&] { return model.Loss(at::ones({2, 19}), true); }));
    engine.Step();
    EXPECT_THROW(engine.Backward(stale), std::exception);
  });
}

TEST(Engine, ReportsNonFiniteGradientsAndSkips) {
  for (const int stage : {0, 1, 2, 3}) {
    OnRanks(2, [stage](std::shared_ptr<Ranks> ranks) {
      Model model;
      Engine engine(model.List(), SettingsFor({stage, 2}), ranks);
      const std::string before = engine.ParametersSha256();
      const double factor = ranks->rank() == 1 ? NAN : 1.0;
      engine.Backward(engine.Forward([&] { return (model[3] * factor).sum() + model[5].sum(); }));
      const StepResult result = engine.Step();
      EXPECT_FALSE(result.applied);
      EXPECT_EQ(result.overflowed, "odd");
      EXPECT_EQ(engine.ParametersSha256(), before);
      EXPECT_EQ(engine.skipped_steps(), 1);
    });
  }
}

TEST(Engine, IgnoredParametersStayWholeAndPatternsMustMatch) {
  OnRanks(2, [](std::shared_ptr<Ranks> ranks) {
    Model model;
    ParameterList list = model.List();
    list.AddBuffer("rotary_emb.inv_freq");
    Engine engine(std::move(list),
                  SettingsFor({3, 2}, R"({"ignored_parameters": ["in\\.", "rotary_emb.*"]})"),
                  ranks);
    EXPECT_NE(model[0].data_ptr(), nullptr);  // present without gathering
    EXPECT_NE(engine.StartLines().front().find("matches only buffers"), std::string::npos);
  });
  OnRanks(1, [](std::shared_ptr<Ranks> ranks) {
    Model model;
    EXPECT_THROW(
        Engine(model.List(), SettingsFor({3, 1}, R"({"ignored_parameters": ["nothing"]})"), ranks),
        ConfigError);
  });
}

TEST(Engine, EndsAllRanksWhenOneFails) {
  EXPECT_THROW(OnRanks(2,
                       [](std::shared_ptr<Ranks> ranks) {
                         Model model;
                         Engine engine(model.List(), SettingsFor({3, 2}), ranks);
                         if (ranks->rank() == 1) throw std::runtime_error("deliberate");
                         engine.Backward(engine.Forward([&] {
                           return model.Loss(at::ones({2, 19}), true);
                         }));
                         engine.Step();
                       }),
               std::exception);
}

}  // namespace
}  // namespace ullage::testing
