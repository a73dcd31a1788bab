// Which checkpoint a run goes on from, and which may go.
#include "checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/small_checkpoint.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

class Folder : public testing::Test {
 protected:
  void Write(std::int64_t steps) { testsupport::WriteSmallCheckpoint(fs_, folder_.PathOf(steps)); }
  void Break(std::int64_t steps) {
    std::filesystem::remove(folder_.PathOf(steps) + "/" + ShardName(1, 2));
  }
  using Steps = std::vector<std::int64_t>;

  files::PosixFileSystem fs_;
  testsupport::Scratch scratch_;
  const CheckpointFolder folder_{fs_, scratch_ / "checkpoints"};
};

TEST_F(Folder, IsEmptyBeforeTheFirstSave) {
  EXPECT_EQ(folder_.Steps(), Steps());
  EXPECT_EQ(folder_.Latest(), std::nullopt);
}

TEST_F(Folder, KnowsCheckpointsByTheirNames) {
  for (const char* name : {"step-00000003", "step-1234567890", "step-3", "step-0000000x", "steps",
                           "step-00000005.ullage-partial"}) {
    fs_.CreateDirectories(folder_.path() + "/" + name);
  }
  EXPECT_EQ(folder_.Steps(), (Steps{1'234'567'890, 3}));
  folder_.Prepare();
  EXPECT_FALSE(fs_.Stat(folder_.path() + "/step-00000005.ullage-partial"));
  EXPECT_TRUE(fs_.Stat(folder_.path() + "/steps"));
}

TEST_F(Folder, GoesOnFromTheOneThatIsNamed) {
  Write(1);
  Write(2);
  EXPECT_EQ(folder_.Latest(), folder_.PathOf(2));
  folder_.PointTo(1);
  EXPECT_EQ(folder_.Latest(), folder_.PathOf(1));
  EXPECT_EQ(scratch_.Read("checkpoints/latest"), "step-00000001\n");
}

TEST_F(Folder, PassesOverWhatIsNotComplete) {
  Write(1);
  Write(2);
  Write(3);
  folder_.PointTo(3);
  Break(3);
  std::vector<std::string> passed_over;
  EXPECT_EQ(folder_.Latest(&passed_over), folder_.PathOf(2));
  ASSERT_EQ(passed_over.size(), 1u);
  EXPECT_NE(passed_over[0].find("rank-00001-of-00002.safetensors: is missing"), std::string::npos);
  scratch_.Write("checkpoints/latest", "../../elsewhere\n");
  EXPECT_EQ(folder_.Latest(), folder_.PathOf(2));
}

TEST_F(Folder, RemovesTheOldestAndNeverTheNewestCompleteOne) {
  for (const std::int64_t steps : {1, 2, 3, 4}) Write(steps);
  Break(3);
  folder_.Prune(2, 4);
  EXPECT_EQ(folder_.Steps(), (Steps{4, 3, 2}));  // the broken one counts for nothing
  folder_.Prune(1, 4);
  EXPECT_EQ(folder_.Steps(), Steps{4});
  EXPECT_TRUE(folder_.IsComplete(4));
}

TEST_F(Folder, LeavesLaterOnesOfARunThatWasGivenUp) {
  for (const std::int64_t steps : {1, 2, 9}) Write(steps);
  folder_.Prune(1, 2);  // resumed from 1, saved at 2
  EXPECT_EQ(folder_.Steps(), (Steps{9, 2}));
}

}  // namespace
}  // namespace ullage::checkpoint
