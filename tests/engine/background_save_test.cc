// Saving while training goes on: what is written is the state of the moment of the save.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "comm/comm.h"
#include "engine/checkpoint_model.h"
#include "engine/support.h"
#include "files/faulty_file_system.h"
#include "files/scratch.h"

namespace ullage::testing {
namespace {

using files::Faults;
using files::FaultyFileSystem;
using testsupport::MessageOf;
using testsupport::Scratch;

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";

void Dawdle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// What a save of step 2 that was waited for holds.
Contents Expected(const Case& c, const std::string& folder) {
  std::string path;
  OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model;
    Engine engine(model.List(), KeptSettings(c, kBf16), ranks);
    TrainSteps(engine, model, 0, 2);
    const std::string saved = engine.SaveCheckpoint(folder);
    if (ranks->rank() == 0) path = saved;
  });
  return ContentsOf(path);
}

TEST(BackgroundSave, HoldsTheStateOfItsMomentWhateverTrainingDoesMeanwhile) {
  const Scratch scratch;
  const Contents expected = Expected({3, 2, 1'000'000, 2048}, scratch / "expected");
  for (const int stage : {0, 1, 3}) {
    for (const std::int64_t buffer_bytes : {0, 6000, 1 << 20}) {
      Case c{stage, 2, 1'000'000, 2048};
      if (stage > 0) c.offload_optimizer = 0.5;
      c.to_disk = stage == 1;
      SCOPED_TRACE(Describe(c) + fmt::format(", buffer of {} bytes", buffer_bytes));
      const bool has_room = buffer_bytes == 1 << 20;
      std::string path;
      OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
        KeptModel model;
        Engine engine(model.List(), KeptSettings(c, kBf16), ranks);
        files::PosixFileSystem disk;
        std::promise<void> go_on;
        Faults faults;
        // With room for everything, nothing is written before two steps are done.
        faults.before_write = Dawdle;
        if (has_room) faults.before_write = [gate = go_on.get_future().share()] { gate.wait(); };
        FaultyFileSystem slow(disk, faults);
        TrainSteps(engine, model, 0, 2);
        SaveOptions options;
        options.file_system = &slow;
        options.background = true;
        options.buffer_bytes = buffer_bytes;
        const std::string saved = engine.SaveCheckpoint(scratch / "beside", options);
        TrainSteps(engine, model, 2, 4);
        go_on.set_value();
        TrainSteps(engine, model, 4, 5);
        engine.FinishSaving();
        if (ranks->rank() == 0) path = saved;
      });
      const Contents contents = ContentsOf(path);
      EXPECT_EQ(contents.size(), expected.size());
      for (const auto& [name, bytes] : expected) EXPECT_TRUE(contents.at(name) == bytes) << name;
      std::filesystem::remove_all(scratch / "beside");
    }
  }
}

TEST(BackgroundSave, ChangesNothingForTraining) {
  std::string expected;
  for (const bool save : {false, true}) {
    const Scratch scratch;
    OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
      KeptModel model;
      Engine engine(model.List(), KeptSettings({2, 2}), ranks);
      SaveOptions options;
      options.background = true;
      for (int step = 0; step < 5; ++step) {
        TrainSteps(engine, model, step, step + 1);
        if (save) engine.SaveCheckpoint(scratch / "all", options);
      }
      const std::string sha = engine.ParametersSha256();
      if (ranks->rank() != 0) return;
      if (!save) expected = sha;
      EXPECT_EQ(sha, expected);
    });
    // The engine's end waits for the last.
    if (save) {
      EXPECT_EQ(scratch.Read("all/latest"), "step-00000005\n");
    }
  }
}

TEST(BackgroundSave, TheBufferIsInThePlanAsItIsInTheLedger) {
  const auto of_saves = [](const std::vector<std::pair<std::string, std::int64_t>>& bytes) {
    return std::ranges::find(bytes, "saves", &std::pair<std::string, std::int64_t>::first)->second;
  };
  for (const std::int64_t buffer_bytes : {0, 6000, 1 << 30}) {
    for (const int stage : {0, 3}) {
      const Scratch scratch;
      OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
        KeptModel model;
        EngineOptions options;
        options.save_buffer_bytes = buffer_bytes;
        Engine engine(model.List(), KeptSettings({stage, 2}, kBf16), ranks, options);
        SaveOptions save;
        save.background = true;
        save.buffer_bytes = buffer_bytes;
        EXPECT_EQ(of_saves(engine.memory().now), 0);
        engine.SaveCheckpoint(scratch / "all", save);
        TrainSteps(engine, model, 0, 1);
        engine.FinishSaving();
        EXPECT_EQ(of_saves(engine.memory().peak), of_saves(engine.planned_bytes()));
        const bool shown = engine.PlanText().find("\nsaves ") != std::string::npos;
        EXPECT_EQ(shown, buffer_bytes > 0);
        // No more than there is to keep: weights, two moments, and padding.
        const std::int64_t most = buffer_bytes == 1 << 30 ? 40'000 : buffer_bytes;
        EXPECT_LE(of_saves(engine.planned_bytes()), most);
      });
    }
  }
}

TEST(BackgroundSave, KeepsWhatTheUserWritesOver) {
  const Scratch scratch;
  const Contents expected = Expected({3, 1}, scratch / "expected");
  KeptModel model;
  Engine engine(model.List(), KeptSettings({3, 1}, kBf16),
                std::make_shared<Ranks>(comm::MakeSingleComm()));
  files::PosixFileSystem disk;
  Faults faults;
  faults.before_write = Dawdle;
  FaultyFileSystem slow(disk, faults);
  TrainSteps(engine, model, 0, 2);
  SaveOptions options;
  options.file_system = &slow;
  options.background = true;
  const std::string path = engine.SaveCheckpoint(scratch / "beside", options);
  {
    const at::NoGradGuard no_grad;
    model.frozen.fill_(7);
    model.odd.add_(1);
    model.running.fill_(9);
  }
  engine.FinishSaving();
  EXPECT_TRUE(ContentsOf(path) == expected);
}

TEST(BackgroundSave, TellsAFailureAtTheNextSave) {
  const Scratch scratch;
  OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model;
    Engine engine(model.List(), KeptSettings({3, 2}), ranks);
    files::PosixFileSystem disk;
    Faults faults;
    if (ranks->rank() == 1) faults.full_disk_at_write = 1;
    FaultyFileSystem faulty(disk, faults);
    SaveOptions options;
    options.file_system = &faulty;
    options.background = true;
    TrainSteps(engine, model, 0, 1);
    EXPECT_NO_THROW(engine.SaveCheckpoint(scratch / "all", options));
    TrainSteps(engine, model, 1, 2);
    const std::string message =
        MessageOf<IoError>([&] { engine.SaveCheckpoint(scratch / "all", options); });
    EXPECT_NE(message.find("rank 1: "), std::string::npos) << message;
    EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    options.file_system = nullptr;
    EXPECT_EQ(engine.SaveCheckpoint(scratch / "all", options), scratch / "all/step-00000002");
    engine.FinishSaving();
  });
  EXPECT_FALSE(scratch.Exists("all/step-00000001"));
  EXPECT_TRUE(scratch.Exists("all/step-00000002/manifest.json"));
}

}  // namespace
}  // namespace ullage::testing
