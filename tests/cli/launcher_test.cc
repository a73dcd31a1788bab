#include "cli/launcher.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "files/scratch.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

// Ranks that are shell scripts.
class Launcher : public ::testing::Test {
 protected:
  Launcher() { ::setenv("FOLDER", scratch_.path().c_str(), 1); }

  int Launch(const std::string& script, int ranks, int threads = 0) const {
    LaunchOptions options;
    options.program = "/bin/sh";
    options.command = {"sh", "-c", script};
    options.ranks = ranks;
    options.threads = threads;
    options.grace = std::chrono::milliseconds(500);
    return LaunchRanks(options);
  }

  testsupport::Scratch scratch_;
};

TEST_F(Launcher, EveryRankLearnsItsPlace) {
  const std::string script =
      "echo $ULLAGE_RANK $ULLAGE_WORLD_SIZE $ULLAGE_LOCAL_RANK $OMP_NUM_THREADS"
      " > $FOLDER/rank$ULLAGE_RANK";
  EXPECT_EQ(Launch(script, 3, /*threads=*/5), 0);
  EXPECT_EQ(scratch_.Read("rank0"), "0 3 0 5\n");
  EXPECT_EQ(scratch_.Read("rank1"), "1 3 1 5\n");
  EXPECT_EQ(scratch_.Read("rank2"), "2 3 2 5\n");
}

TEST_F(Launcher, TheMeetingPlaceIsSharedAndGoneAfterwards) {
  EXPECT_EQ(Launch("echo ${ULLAGE_STORE#file:} > $FOLDER/store$ULLAGE_RANK;"
                   "test -d $(dirname ${ULLAGE_STORE#file:})",
                   2),
            0);
  std::string store = scratch_.Read("store0");
  EXPECT_EQ(store, scratch_.Read("store1"));
  store.pop_back();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(store).parent_path()));
}

TEST_F(Launcher, TheFirstFailureGivesTheExitCode) {
  EXPECT_EQ(Launch("test $ULLAGE_RANK = 0 && exit 7; sleep 0.2; exit 9", 2), 7);
}

TEST_F(Launcher, AKilledRankGives128PlusItsSignal) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Launch("test $ULLAGE_RANK = 1 && kill -9 $$; sleep 0.1", 2), 137);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("rank 1 was killed by signal 9"),
            std::string::npos);
}

TEST_F(Launcher, ARankThatDoesNotEndIsKilledAfterTheGrace) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Launch("test $ULLAGE_RANK = 1 && exit 3; exec sleep 60", 2), 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(Launcher, AProgramThatDoesNotExistIsAnError) {
  LaunchOptions options;
  options.program = scratch_ / "nothing";
  options.command = {"nothing"};
  EXPECT_THROW(LaunchRanks(options), IoError);
}

}  // namespace
}  // namespace ullage::cli
