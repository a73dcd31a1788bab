// What is saved comes back bit for bit, on any ranks, at any stage and placement, and training goes
// on as if it had never stopped.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fmt/format.h>

#include "engine/checkpoint_model.h"
#include "engine/support.h"
#include "files/scratch.h"

namespace ullage::testing {
namespace {

using testsupport::Scratch;

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";
constexpr const char* kFp16 =
    R"(, "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 2})";

struct TrainedRun {
  std::string sha;
  std::string path;  // of the checkpoint that was written
};

// Trains steps 0 to `steps` - 1 and saves.
TrainedRun TrainAndSave(const Case& c, const std::string& folder, const std::string& extra = "",
                        int steps = 3) {
  TrainedRun run;
  OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model;
    EngineOptions options;
    options.seed = 77;
    Engine engine(model.List(), KeptSettings(c, extra), ranks, options);
    TrainSteps(engine, model, 0, steps);
    SaveOptions save;
    save.client_state = "{\"epoch\": 1}";
    const std::string path = engine.SaveCheckpoint(folder, save);
    const std::string sha = engine.ParametersSha256();
    if (ranks->rank() == 0) run = {sha, path};
  });
  return run;
}

// Loads into an engine of other values and another seed, trains steps `first` to `last` - 1, saves.
TrainedRun LoadAndSave(const Case& c, const std::string& from, const std::string& folder,
                       const std::string& extra = "", int first = 3, int last = 3) {
  TrainedRun run;
  OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model(/*seed=*/12);
    Engine engine(model.List(), KeptSettings(c, extra), ranks);
    // What is gathered or resident by now must not be used any more.
    if (first == 3) TrainSteps(engine, model, 0, 1);
    const CheckpointInfo info = engine.LoadCheckpoint(from);
    EXPECT_EQ(info.client_state, "{\"epoch\": 1}");
    EXPECT_EQ(engine.applied_steps(), 3);
    EXPECT_EQ(model.count.item<int>(), 3);
    TrainSteps(engine, model, first, last);
    SaveOptions save;
    save.client_state = info.client_state;
    const std::string path = engine.SaveCheckpoint(folder, save);
    const std::string sha = engine.ParametersSha256();
    if (ranks->rank() == 0) run = {sha, path};
  });
  return run;
}

TEST(Checkpoint, StateAfterLoadingIsBitwiseEqualAtEveryPlacement) {
  const Scratch scratch;
  for (const char* precision : {"", kBf16}) {
    const TrainedRun saved = TrainAndSave({3, 2, 7, 4096}, scratch / "saved", precision);
    const Contents expected = ContentsOf(saved.path);
    ASSERT_EQ(expected.size(), 4 * 3u + 3 + 1 + 2 + 1);  // parts of all parameters, the rest
    for (const int world_size : {1, 2, 4}) {
      for (const int stage : {0, 1, 2, 3}) {
        std::vector<Case> cases = {{stage, world_size, 1'000'000, 4096}};
        if (stage > 0) {
          cases.push_back(cases[0]);
          cases.back().offload_optimizer = 0.5;
          cases.push_back(cases.back());
          cases.back().to_disk = true;
        }
        if (stage == 3) {
          cases.push_back(cases[0]);
          cases.back().offload_optimizer = 1.0;
          cases.back().offload_param = true;
          cases.push_back({3, world_size, 3, 32 << 20});
        }
        for (const Case& c : cases) {
          SCOPED_TRACE(Describe(c) + precision);
          const TrainedRun loaded = LoadAndSave(c, saved.path, scratch / "again", precision);
          EXPECT_EQ(loaded.sha, saved.sha);
          EXPECT_TRUE(ContentsOf(loaded.path) == expected);
        }
      }
    }
  }
}

TEST(Checkpoint, TrainingGoesOnAsIfItHadNotStopped) {
  const Scratch scratch;
  for (const char* precision : {"", kBf16, kFp16}) {
    const TrainedRun unbroken = TrainAndSave({3, 2}, scratch / "unbroken", precision, /*steps=*/6);
    const TrainedRun half = TrainAndSave({3, 2}, scratch / "half", precision);
    for (const Case& c : {Case{3, 2}, Case{0, 2}, Case{2, 2}, Case{1, 4}, Case{3, 4}, Case{3, 1}}) {
      SCOPED_TRACE(Describe(c) + precision);
      const TrainedRun resumed = LoadAndSave(c, half.path, scratch / "resumed", precision, 3, 6);
      EXPECT_EQ(resumed.sha, unbroken.sha);
      EXPECT_TRUE(ContentsOf(resumed.path) == ContentsOf(unbroken.path));
    }
  }
}

TEST(Checkpoint, OfOneMomentAndOfNoneGoesOn) {
  const Scratch scratch;
  for (const char* momentum : {"0.9", "0"}) {
    const std::string sgd = fmt::format(
        R"(, "optimizer": {{"type": "SGD", "params": {{"lr": 0.1, "momentum": {}}}}})", momentum);
    const TrainedRun unbroken = TrainAndSave({2, 2}, scratch / "unbroken", sgd, /*steps=*/5);
    const TrainedRun half = TrainAndSave({2, 2}, scratch / "half", sgd);
    EXPECT_EQ(LoadAndSave({3, 1}, half.path, scratch / "resumed", sgd, 3, 5).sha, unbroken.sha);
  }
}

TEST(Checkpoint, OfFp32GoesOnInBf16AndBack) {
  const Scratch scratch;
  const TrainedRun saved = TrainAndSave({3, 2}, scratch / "saved");
  const TrainedRun narrow = LoadAndSave({2, 2}, saved.path, scratch / "narrow", kBf16);
  const Contents expected = ContentsOf(saved.path), found = ContentsOf(narrow.path);
  EXPECT_EQ(found.at("master.odd"), expected.at("master.odd"));  // bf16 keeps the fp32 value
  EXPECT_EQ(found.at("exp_avg_sq.odd"), expected.at("exp_avg_sq.odd"));
  EXPECT_EQ(found.at("weight.frozen").size(), expected.at("weight.frozen").size() / 2);
  const TrainedRun wide = LoadAndSave({3, 1}, narrow.path, scratch / "wide");
  EXPECT_EQ(ContentsOf(wide.path).at("master.odd"), expected.at("master.odd"));
}

// C5 of the canonical cases.
TEST(Canonical, C5ResumesOnOtherNumbersOfRanks) {
  const Scratch scratch;
  const auto steps = [&](int world_size, int from, int to, bool save) {
    std::vector<at::Tensor> values(2);
    OnRanks(world_size, [&](std::shared_ptr<Ranks> ranks) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{5});
      const at::Tensor weight = at::randn({3, 3}, generator).set_requires_grad(true);
      const at::Tensor bias = at::randn({3}, generator).set_requires_grad(true);
      ParameterList list;
      list.Add("weight", weight);
      list.Add("bias", bias);
      Engine engine(
          std::move(list),
          SettingsFor({3, world_size},
                      fmt::format(R"({{"optimizer": {{"type": "Adam", "params": {{"lr": 0.01}}}},
                                       "train_micro_batch_size_per_gpu": {}}})",
                                  12 / world_size)),
          ranks);
      if (from > 0) engine.LoadCheckpoint(scratch / "c5");
      EXPECT_EQ(engine.applied_steps(), from);
      for (int step = from; step < to; ++step) {
        const at::Tensor batch = at::sin(at::arange(36).view({12, 3}) + 7 * step);
        const at::Tensor x = batch.chunk(world_size)[static_cast<std::size_t>(ranks->rank())];
        engine.Backward(engine.Forward([&] { return at::linear(x, weight, bias).pow(2).mean(); }));
        engine.Step();
      }
      if (save) engine.SaveCheckpoint(scratch / "c5");
      const auto gathered = engine.Gather();
      if (ranks->rank() == 0) values = {weight.detach().clone(), bias.detach().clone()};
    });
    return values;
  };
  const std::vector<at::Tensor> unbroken = steps(4, 0, 6, false);
  steps(4, 0, 3, true);
  for (const int world_size : {4, 2, 3, 1}) {
    const std::vector<at::Tensor> resumed = steps(world_size, 3, 6, false);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_LE((resumed[i] - unbroken[i]).abs().max().item<double>(), world_size == 4 ? 0 : 1e-6);
    }
  }
}

TEST(Checkpoint, BringsWeightsAloneOnRequest) {
  const Scratch scratch;
  const TrainedRun saved = TrainAndSave({3, 2}, scratch / "saved");
  OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model(/*seed=*/12);
    // Another optimizer, which has no use for these moments.
    Engine engine(model.List(),
                  KeptSettings({2, 2}, R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1}})"),
                  ranks);
    LoadOptions options;
    options.weights_only = true;
    engine.LoadCheckpoint(saved.path, options);
    EXPECT_EQ(engine.ParametersSha256(), saved.sha);
    EXPECT_EQ(engine.applied_steps(), 0);
    EXPECT_EQ(model.count.item<int>(), 3);
    TrainSteps(engine, model, 0, 3);  // the first two have a learning rate of 0
    EXPECT_NE(engine.ParametersSha256(), saved.sha);
  });
}

TEST(Checkpoint, TakesTheNewestOfAFolderAndKeepsAsManyAsAsked) {
  const Scratch scratch;
  OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model;
    Engine engine(model.List(), KeptSettings({3, 2}), ranks);
    SaveOptions save;
    save.keep = 2;
    for (int step = 0; step < 4; ++step) {
      TrainSteps(engine, model, step, step + 1);
      engine.SaveCheckpoint(scratch / "all", save);
    }
    const std::string sha = engine.ParametersSha256();
    TrainSteps(engine, model, 4, 5);
    EXPECT_EQ(engine.LoadCheckpoint(scratch / "all").path, scratch / "all/step-00000004");
    EXPECT_EQ(engine.ParametersSha256(), sha);
  });
  EXPECT_FALSE(scratch.Exists("all/step-00000002"));
  EXPECT_TRUE(scratch.Exists("all/step-00000003/manifest.json"));
  EXPECT_EQ(scratch.Read("all/latest"), "step-00000004\n");
}

}  // namespace
}  // namespace ullage::testing
