// Optimizer state on disk: the same bits, a file that comes and goes with the engine, and a disk
// that fails is told.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/support.h"
#include "engine/training.h"
#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::testing {
namespace {

using tiers::Contains;
using tiers::MessageOf;

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";

std::string OnDisk(const std::string& folder) {
  return R"({"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
             "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": ")" +
         folder + R"("}}})";
}

void Backward(Engine& engine, const Model& model) {
  const at::Tensor x = at::sin(at::arange(38).view({2, 19})).to(model[0].scalar_type());
  engine.Backward(engine.Forward([&] { return model.Loss(x, true).to(at::kFloat); }));
}

// For as long as it lives this process may write nothing to a file beyond its first block.
class FullDisk {
 public:
  FullDisk() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit block = before_;
    block.rlim_cur = 4096;
    ::setrlimit(RLIMIT_FSIZE, &block);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Disk, NeverChangesABitAtAnyStageOrWithAnyOptimizer) {
  for (const char* optimizer :
       {"", R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})"}) {
    for (const char* precision : {"", kBf16}) {
      const std::string extra = std::string(optimizer) + precision;
      const Outcome expected = Train({0, 1}, extra);
      for (const int stage : {1, 2, 3}) {
        for (const int world_size : {1, 2}) {
          const Case c = {.stage = stage,
                          .world_size = world_size,
                          .unit_bytes = 1500,
                          .offload_optimizer = 1.0,
                          .to_disk = true,
                          .offload_param = stage == 3 && world_size == 1};
          SCOPED_TRACE(Describe(c) + extra);
          const Outcome outcome = Train(c, extra);
          EXPECT_EQ(outcome.sha, expected.sha);
          EXPECT_EQ(outcome.norms, expected.norms);
        }
      }
    }
  }
}

TEST(Disk, TheFileIsThereAsLongAsTheEngineAndTheStartLinesSayWhere) {
  const tiers::TemporaryFolder folder;
  OnRanks(2, [&](std::shared_ptr<Ranks> ranks) {
    const Model model;
    const Engine engine(model.List(), SettingsFor({1, 2}, OnDisk(folder.path())), ranks);
    const std::string mine = "ullage-rank" + std::to_string(ranks->rank()) + "-";
    int files = 0;
    for (const std::string& name : folder.names()) files += Contains(name, mine) ? 1 : 0;
    EXPECT_EQ(files, 1);
    const std::vector<std::string> lines = engine.StartLines();
    EXPECT_TRUE(std::ranges::any_of(lines, [&](const std::string& line) {
      return Contains(line, "optimizer state on disk: 8.00 KiB of each rank in " + folder.path());
    })) << lines.front();
  });
  EXPECT_TRUE(folder.names().empty());
}

TEST(Disk, AFolderThatIsMissingIsAnErrorOfItsKeyBeforeTraining) {
  OnRanks(1, [](std::shared_ptr<Ranks> ranks) {
    const Model model;
    const std::string message = MessageOf<ConfigError>([&] {
      Engine(model.List(), SettingsFor({1, 1}, OnDisk("/no/such/disk")), ranks);
    });
    EXPECT_TRUE(Contains(message,
                         "zero_optimization.offload_optimizer.nvme_path: \"/no/such/disk\" is not "
                         "an existing folder"))
        << message;
  });
}

TEST(Disk, TheCommonFolderAndItsLimitHold) {
  const tiers::TemporaryFolder folder;
  const auto settings = [&](const char* limit) {
    return SettingsFor({1, 1}, R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}},
        "optimizer": {"type": "AdamW"},
        "ullage": {"disk": {"limit": )" +
                                   std::string(limit) + R"(, "path": ")" + folder.path() + "\"}}}");
  };
  OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
    const Model model;
    const Engine engine(model.List(), settings("1000000"), ranks);
    EXPECT_EQ(folder.names().size(), 1u);
    const std::string message =
        MessageOf<ConfigError>([&] { Engine(Model().List(), settings("100"), ranks); });
    EXPECT_TRUE(Contains(message, "ullage.disk.limit: 100 B for state on disk, but rank 0 needs"))
        << message;
  });
}

TEST(Disk, AWriteThatFailsEndsTheRunAndSaysToResumeFromACheckpoint) {
  const tiers::TemporaryFolder folder;
  OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
    const Model model;
    Engine engine(model.List(), SettingsFor({1, 1}, OnDisk(folder.path())), ranks);
    Backward(engine, model);
    engine.Step();
    Backward(engine, model);
    {
      const FullDisk full;
      const std::string message = MessageOf<IoError>([&] { engine.Step(); });
      for (const char* part :
           {folder.path().c_str(), "cannot write", "neither that before the step nor that after",
            "resume from the last checkpoint"}) {
        EXPECT_TRUE(Contains(message, part)) << message;
      }
    }
    // The weights are half of one step and half of another: nothing is trained or exported.
    EXPECT_THROW(Backward(engine, model), StateError);
    EXPECT_THROW(engine.ParametersSha256(), StateError);
  });
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace ullage::testing
