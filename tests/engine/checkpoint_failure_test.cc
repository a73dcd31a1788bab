// Saves and loads that fail: the error says why, the last good checkpoint stays, nobody goes on
// with half of a state.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint_folder.h"
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

// One rank alone with a good checkpoint of step 1, standing at step 2.
class Failing : public ::testing::Test {
 protected:
  void SetUp() override {
    Start();
    TrainSteps(*engine_, *model_, 0, 1);
    first_ = ContentsOf(engine_->SaveCheckpoint(folder_));
    TrainSteps(*engine_, *model_, 1, 2);
  }
  // A process that begins.
  void Start() {
    engine_.reset();
    model_ = std::make_unique<KeptModel>();
    engine_ = std::make_unique<Engine>(model_->List(), KeptSettings({3, 1}, kBf16),
                                       std::make_shared<Ranks>(comm::MakeSingleComm()));
  }
  std::string SaveOn(files::FileSystem& fs) {
    SaveOptions options;
    options.file_system = &fs;
    options.keep = 1;
    return engine_->SaveCheckpoint(folder_, options);
  }
  std::string File(const std::string& name) { return folder_ + "/step-00000001/" + name; }

  const Scratch scratch_;
  const std::string folder_ = scratch_ / "checkpoints";
  files::PosixFileSystem disk_;
  std::unique_ptr<KeptModel> model_;
  std::unique_ptr<Engine> engine_;
  Contents first_;
};

TEST_F(Failing, ASaveThatIsKilledAnywhereLeavesACompleteCheckpoint) {
  FaultyFileSystem counting(disk_, {});
  const Contents second = ContentsOf(SaveOn(counting));
  std::int64_t old_ones = 0, new_ones = 0;
  for (std::int64_t change = 0; change <= counting.changes(); ++change) {
    // As it was before the save.
    std::filesystem::remove_all(folder_);
    Start();
    TrainSteps(*engine_, *model_, 0, 1);
    engine_->SaveCheckpoint(folder_);
    TrainSteps(*engine_, *model_, 1, 2);
    Faults faults;
    faults.killed_after_changes = change;
    FaultyFileSystem killed(disk_, faults);
    try {
      SaveOn(killed);
    } catch (const IoError&) {
    }
    const auto latest = checkpoint::CheckpointFolder(disk_, folder_).Latest();
    ASSERT_TRUE(latest.has_value()) << "killed after " << change << " changes";
    const Contents found = ContentsOf(*latest);
    if (found == first_) ++old_ones;
    if (found == second) ++new_ones;
    ASSERT_EQ(old_ones + new_ones, change + 1) << "a mixture after " << change << " changes";
    // The next process saves over what was left.
    EXPECT_TRUE(ContentsOf(SaveOn(disk_)) == second);
  }
  EXPECT_GT(old_ones, 3);
  EXPECT_GT(new_ones, 1);
}

TEST_F(Failing, AFullDiskIsToldAndTrainingMayGoOn) {
  FaultyFileSystem counting(disk_, {});
  const std::string path = SaveOn(counting);
  const Contents second = ContentsOf(path);
  for (std::int64_t write = 0; write < counting.writes(); ++write) {
    std::filesystem::remove_all(path);
    Faults faults;
    faults.full_disk_at_write = write;
    FaultyFileSystem full(disk_, faults);
    const std::string message = MessageOf<IoError>([&] { SaveOn(full); });
    EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    EXPECT_NE(message.find("hint: free space there"), std::string::npos) << message;
    EXPECT_FALSE(disk_.Stat(path + ".ullage-partial")) << "write " << write;
  }
  EXPECT_TRUE(ContentsOf(SaveOn(disk_)) == second);
}

TEST_F(Failing, AShortWriteIsMadeGood) {
  FaultyFileSystem counting(disk_, {});
  const Contents second = ContentsOf(SaveOn(counting));
  for (std::int64_t write = 0; write < counting.writes(); ++write) {
    Faults faults;
    faults.short_write_at = write;
    FaultyFileSystem shortened(disk_, faults);
    EXPECT_TRUE(ContentsOf(SaveOn(shortened)) == second);
  }
}

TEST_F(Failing, AFailedSyncOrRenameIsToldAndLeavesTheOldOne) {
  for (int at = 0; at < 6; ++at) {
    Faults faults;
    (at < 4 ? faults.failed_sync_at : faults.failed_rename_at) = at < 4 ? at : at - 4;
    FaultyFileSystem failing(disk_, faults);
    EXPECT_THROW(SaveOn(failing), IoError);
    EXPECT_TRUE(ContentsOf(*checkpoint::CheckpointFolder(disk_, folder_).Latest()) == first_) << at;
  }
}

TEST_F(Failing, AFolderThatCannotBeMadeIsNamed) {
  scratch_.Write("file", "");
  const std::string message =
      MessageOf<IoError>([&] { engine_->SaveCheckpoint(scratch_ / "file/checkpoints"); });
  EXPECT_NE(message.find(scratch_ / "file"), std::string::npos) << message;
}

TEST_F(Failing, ADamagedFileStopsTheRanks) {
  const std::string shard = File("rank-00000-of-00001.safetensors");
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(shard));
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(bytes / 2);
  file.put('\x77');
  file.close();
  const std::string message = MessageOf<IoError>([&] { engine_->LoadCheckpoint(folder_); });
  EXPECT_NE(message.find("are damaged: their checksum is"), std::string::npos) << message;
  EXPECT_NE(message.find("hint: copy the file again, or resume from an earlier"), std::string::npos)
      << message;
}

TEST_F(Failing, ACheckpointThatDoesNotFitLeavesTheEngineAsItWas) {
  const std::string before = engine_->ParametersSha256();
  const auto refusal = [&](ParameterList list, const std::string& extra = "") {
    Engine other(std::move(list), KeptSettings({3, 1}, kBf16 + extra),
                 std::make_shared<Ranks>(comm::MakeSingleComm()));
    const std::string sha = other.ParametersSha256();
    const std::string message = MessageOf<ConfigError>([&] { other.LoadCheckpoint(folder_); });
    EXPECT_EQ(other.ParametersSha256(), sha);
    return message;
  };
  const auto says = [](const std::string& message, const std::string& what) {
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  const KeptModel model;
  ParameterList list = KeptModel().List();
  list.Add("more", torch::zeros({2}).set_requires_grad(true));
  says(refusal(std::move(list)), "more: is not in the checkpoint");
  list = ParameterList();
  list.Add("embedding", torch::zeros({37, 18}).set_requires_grad(true));
  list.Add("frozen", torch::zeros({37, 37}).set_requires_grad(true));
  const std::string message = refusal(std::move(list));
  says(message, "embedding: the model has shape [37, 18], the checkpoint [37, 19]");
  says(message, "frozen: trained in the model, frozen in the checkpoint");
  says(message, "bias: is not in the model");
  says(message, "running: is not in the model");
  list = KeptModel().List();
  list.AddBuffer("other", torch::zeros({1}));
  says(refusal(std::move(list)), "other: the buffer is not in the checkpoint");
  says(refusal(KeptModel().List(),
               R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})"),
       "optimizer: sgd with [momentum_buffer] here, adam with [exp_avg, exp_avg_sq]");
}

TEST_F(Failing, AStepThatIsUnderWayIsNotSaved) {
  engine_->Backward(engine_->Forward([&] { return model_->Loss(torch::ones({2, 19})); }));
  const std::string message = MessageOf<StateError>([&] { engine_->SaveCheckpoint(folder_); });
  EXPECT_NE(message.find("after 1 Backward calls"), std::string::npos) << message;
  EXPECT_THROW(engine_->LoadCheckpoint(folder_), StateError);
}

TEST_F(Failing, NoCheckpointIsNamed) {
  EXPECT_NE(MessageOf<IoError>([&] {
              engine_->LoadCheckpoint(scratch_ / "nowhere");
            }).find(scratch_ / "nowhere"),
            std::string::npos);
  std::filesystem::remove(File("manifest.json"));
  EXPECT_NE(MessageOf<IoError>([&] {
              engine_->LoadCheckpoint(folder_);
            }).find("holds no complete checkpoint"),
            std::string::npos);
}

TEST(FailingRank, IsToldToAllOfThem) {
  // Rank 1's part of the checkpoint cannot be made: both ranks say so, and both go on.
  const Scratch scratch;
  OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
    KeptModel model;
    Engine engine(model.List(), KeptSettings({3, 2}), ranks);
    TrainSteps(engine, model, 0, 1);
    files::PosixFileSystem disk;
    Faults faults;
    if (ranks->rank() == 1) faults.full_disk_at_write = 1;
    FaultyFileSystem faulty(disk, faults);
    SaveOptions options;
    options.file_system = &faulty;
    const std::string message =
        MessageOf<IoError>([&] { engine.SaveCheckpoint(scratch / "all", options); });
    EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    TrainSteps(engine, model, 1, 2);
    EXPECT_EQ(engine.SaveCheckpoint(scratch / "all"), scratch / "all/step-00000002");
  });
  EXPECT_FALSE(scratch.Exists("all/step-00000001"));
}

}  // namespace
}  // namespace ullage::testing
