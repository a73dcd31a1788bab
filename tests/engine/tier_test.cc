// Where weights, gradients and state lie, and what is gathered ahead, never changes a bit.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "engine/support.h"
#include "engine/training.h"

namespace ullage::testing {
namespace {

const std::vector<const char*> kPrecisions = {
    "", R"(, "bf16": {"enabled": true})",
    R"(, "fp16": {"enabled": true, "initial_scale_power": 6})"};

// One unit for each parameter, and some with several.
constexpr std::int64_t kUnitBytes[] = {1, 1500};

void ExpectPlanned(const Outcome& outcome) {
  for (std::size_t rank = 0; rank < outcome.peak.size(); ++rank) {
    for (const auto& [tag, bytes] : outcome.planned[rank]) {
      if (tag != "data") {
        EXPECT_EQ(outcome.peak[rank].at(tag), bytes) << tag << " of rank " << rank;
      }
    }
  }
}

void ExpectSame(const Case& base, const std::string& precision, const Outcome& expected,
                int micro_batches) {
  for (const Case& c : EachTier(base)) {
    SCOPED_TRACE(Describe(c) + precision);
    const Outcome outcome = Train(c, precision, micro_batches);
    EXPECT_EQ(outcome.sha, expected.sha);
    EXPECT_EQ(outcome.norms, expected.norms);
    ExpectPlanned(outcome);
  }
}

TEST(Tiers, NeverChangeABitOnOneRankOrTwo) {
  for (const char* precision : kPrecisions) {
    const Outcome expected = Train({0, 1}, precision);
    ExpectSame({3, 1, 1'000'000, 1500}, precision, expected, 4);
    ExpectSame({3, 2, 1'000'000, 1500}, precision, expected, 4);
  }
  for (const char* precision : {kPrecisions[0], kPrecisions[1]}) {
    const Outcome expected = Train({0, 1}, precision);
    ExpectSame({1, 2, 1'000'000, 1500}, precision, expected, 4);
    ExpectSame({3, 2, 7, 1}, precision, expected, 4);
  }
}

TEST(Tiers, NeverChangeABitWhereGradientsAreKeptAsTheyCome) {
  for (const char* precision : kPrecisions) {
    const Outcome expected = Train({0, 1}, precision, /*micro_batches=*/1);
    ExpectSame({1, 1, 1'000'000, 1500}, precision, expected, 1);
    for (const std::int64_t unit_bytes : {1, 1500, 32 << 20}) {
      ExpectSame({3, 1, 1'000'000, unit_bytes}, precision, expected, 1);
    }
  }
}

TEST(Tiers, PrefetchNeverChangesABit) {
  for (const char* precision : {kPrecisions[0], kPrecisions[1]}) {
    const Outcome expected = Train({0, 1}, precision);
    for (const int world_size : {1, 2}) {
      for (const bool offload_param : {false, true}) {
        if (world_size == 1 && !offload_param) continue;  // nothing is gathered
        for (const std::int64_t unit_bytes : kUnitBytes) {
          for (const std::int64_t prefetch : {0, 703, 1'000'000}) {  // "in.weight" has 703
            const Case c = {.stage = 3,
                            .world_size = world_size,
                            .unit_bytes = unit_bytes,
                            .offload_param = offload_param,
                            .prefetch_numel = prefetch};
            SCOPED_TRACE(Describe(c) + precision);
            const Outcome outcome = Train(c, precision);
            EXPECT_EQ(outcome.sha, expected.sha);
            EXPECT_EQ(outcome.norms, expected.norms);
            ExpectPlanned(outcome);
            EXPECT_GT(outcome.statistics.gathers, 0);
            EXPECT_EQ(outcome.statistics.gather_overflows, 0);
            if (prefetch == 0) {
              EXPECT_EQ(outcome.statistics.gathered_ahead, 0);
            }
            // With one parameter a unit there are others to gather than those in use.
            if (prefetch > 0 && unit_bytes == 1) {
              EXPECT_GT(outcome.statistics.gathered_ahead, 0);
            }
          }
        }
      }
    }
  }
}

TEST(Tiers, ADryRunCountsWhatARealRunHolds) {
  for (const int world_size : {1, 2}) {
    for (const int micro_batches : {1, 4}) {
      if (micro_batches < world_size) continue;
      std::vector<Case> cases = EachTier({3, world_size, 1'000'000, 1500});
      for (Case c : EachTier({3, world_size, 1'000'000, 1})) {
        c.prefetch_numel = 1000;
        cases.push_back(c);
      }
      for (const Case& c : cases) {
        SCOPED_TRACE(Describe(c));
        const Outcome real = Train(c, kPrecisions[1], micro_batches);
        for (int rank = 0; rank < world_size; ++rank) {
          const Outcome dry = TrainDry(c, rank, kPrecisions[1], micro_batches);
          for (const auto& [tag, bytes] : dry.peak.front()) {
            if (tag != "data") {
              EXPECT_EQ(bytes, real.peak[static_cast<std::size_t>(rank)].at(tag)) << tag;
            }
          }
        }
      }
    }
  }
}

TEST(Tiers, StateIsSixteenBytesAnElementWhereverItLies) {
  const std::int64_t trainable = 37 * 19 + 37 + 3 * 37 + 37 + 5 * 37 + 5, frozen = 37 * 37;
  for (const int world_size : {1, 2}) {
    for (const Case& c : EachTier({3, world_size, 1'000'000, 1})) {
      SCOPED_TRACE(Describe(c));
      Bytes sum;
      for (const Bytes& rank : Train(c, kPrecisions[1]).peak) {
        for (const auto& [tag, bytes] : rank) sum[tag] += bytes;
      }
      EXPECT_EQ(sum["master"], 2 * trainable);
      EXPECT_EQ(sum["moments"], 8 * trainable);
      EXPECT_EQ(sum["gradients"], 4 * trainable);
      // Only where the weights stay on the device and are updated on the host are there two.
      const std::int64_t once = 2 * (trainable + frozen);
      if (world_size == 1 && !c.offload_param && c.offload_optimizer == 1.0) {
        EXPECT_EQ(sum["weights"], once + 2 * trainable);
      } else if (world_size == 2 || c.offload_param || !c.offload_optimizer) {
        EXPECT_EQ(sum["weights"], once);
      }
    }
  }
}

// More Backward calls than micro-steps: the units that get a second gradient have fp32 sums.
TEST(Tiers, MoreBackwardsThanMicroStepsGiveTheSameBitsForEveryUnitAndTier) {
  for (const char* precision : kPrecisions) {
    std::string expected;
    for (const std::int64_t unit_bytes : kUnitBytes) {
      for (const Case& c : EachTier({3, 1, 1'000'000, unit_bytes})) {
        SCOPED_TRACE(Describe(c) + precision);
        OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
          const Model model;
          Engine engine(model.List(),
                        SettingsFor(c, std::string(R"({"optimizer": {"type": "AdamW",
                                       "params": {"lr": 0.01}})") +
                                           precision + "}"),
                        ranks);
          const at::Tensor x = at::sin(at::arange(38).view({2, 19})).to(model[0].scalar_type());
          for (int step = 0; step < 3; ++step) {
            engine.Backward(engine.Forward([&] { return model.Loss(x, true).to(at::kFloat); }));
            if (step == 1) {  // not of the whole model
              engine.Backward(engine.Forward([&] { return model[5].to(at::kFloat).sum(); }));
            }
            EXPECT_TRUE(engine.Step().applied);
          }
          const std::string sha = engine.ParametersSha256();
          if (expected.empty()) expected = sha;
          EXPECT_EQ(sha, expected);
        });
      }
    }
  }
}

TEST(Tiers, KeepTheFp32ValuesOfWhatAUsersWriteDoesNotChange) {
  const auto values_of = [](Engine& engine, const std::string& name) {
    std::vector<float> values;
    engine.ForEachParameter([&](const Engine::ParameterPiece& piece) {
      if (*piece.name == name) {
        values.insert(values.end(), piece.values.begin(), piece.values.end());
      }
    });
    return values;
  };
  for (const int world_size : {1, 2}) {
    for (const int stage : {1, 3}) {
      for (const Case& c : EachTier({stage, world_size, 1'000'000, 1500})) {
        SCOPED_TRACE(Describe(c));
        OnRanks(world_size, [&](std::shared_ptr<Ranks> ranks) {
          const Model model;
          Engine engine(model.List(), SettingsFor(c, R"({"bf16": {"enabled": true}})"), ranks);
          const std::vector<float> before = values_of(engine, "in.weight");
          {
            at::NoGradGuard no_grad;
            model[0].slice(0, 3, 5).fill_(0.25);
            EXPECT_THROW(model[0].add_(at::ones({4})), std::exception);
            const auto gathered = engine.Gather({"in.weight"}, /*write=*/true);
            model[0].data_ptr<at::BFloat16>()[0] = 7;
          }
          std::vector<float> expected = before;
          std::fill(expected.begin() + 3 * 19, expected.begin() + 5 * 19, 0.25f);
          expected[0] = 7;
          EXPECT_EQ(values_of(engine, "in.weight"), expected);
        });
      }
    }
  }
}

}  // namespace
}  // namespace ullage::testing
