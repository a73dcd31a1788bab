#include "files/atomic_directory.h"

#include "files/faulty_file_system.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::Scratch;

// Replaces out/ by one that holds config = "new", sub/weights = "0123456789".
void WriteNew(FileSystem& fs, const std::string& target) {
  AtomicDirectory directory(fs, target);
  fs.Create(directory.PathOf("config"))->Append("new", 3);
  fs.CreateDirectory(directory.PathOf("sub"));
  const auto weights = fs.Create(directory.PathOf("sub/weights"));
  for (int i = 0; i < 10; ++i) weights->Append(&"0123456789"[i], 1);
  directory.Commit();
}

bool IsOld(const Scratch& scratch) {
  return scratch.Read("out/config") == "old" && !scratch.Exists("out/sub");
}
bool IsNew(const Scratch& scratch) {
  return scratch.Read("out/config") == "new" && scratch.Read("out/sub/weights") == "0123456789" &&
         !scratch.Exists("out/stale");
}
void WriteOld(const Scratch& scratch) {
  std::filesystem::remove_all(scratch / "out");
  std::filesystem::create_directory(scratch / "out");
  scratch.Write("out/config", "old");
  scratch.Write("out/stale", "x");
}

TEST(AtomicDirectory, AppearsAtCommitAndMakesItsParents) {
  Scratch scratch;
  PosixFileSystem fs;
  {
    AtomicDirectory directory(fs, scratch / "deep/er/out/");
    fs.Create(directory.PathOf("config"))->Append("new", 3);
    EXPECT_FALSE(scratch.Exists("deep/er/out"));
    directory.Commit();
    EXPECT_THROW(directory.Commit(), StateError);
  }
  EXPECT_EQ(scratch.Read("deep/er/out/config"), "new");
  EXPECT_FALSE(scratch.Exists("deep/er/out.ullage-partial"));
}

TEST(AtomicDirectory, ReplacesAllOfTheOldOne) {
  for (bool can_exchange : {true, false}) {
    Scratch scratch;
    PosixFileSystem real;
    FaultyFileSystem fs(real, {.can_exchange = can_exchange});
    WriteOld(scratch);
    WriteNew(fs, scratch / "out");
    EXPECT_TRUE(IsNew(scratch));
    EXPECT_FALSE(scratch.Exists("out.ullage-partial"));
    EXPECT_FALSE(scratch.Exists("out.ullage-old"));
  }
}

TEST(AtomicDirectory, WithoutCommitNothingChanges) {
  Scratch scratch;
  PosixFileSystem fs;
  WriteOld(scratch);
  {
    AtomicDirectory directory(fs, scratch / "out");
    fs.Create(directory.PathOf("config"))->Append("new", 3);
  }
  EXPECT_TRUE(IsOld(scratch));
  EXPECT_FALSE(scratch.Exists("out.ullage-partial"));
}

TEST(AtomicDirectory, AFullDiskKeepsTheOldOneAndLeavesNothing) {
  Scratch scratch;
  PosixFileSystem real;
  WriteOld(scratch);
  for (std::int64_t write = 0; write < 11; ++write) {
    FaultyFileSystem fs(real, {.full_disk_at_write = write});
    EXPECT_THROW(WriteNew(fs, scratch / "out"), IoError) << write;
    EXPECT_TRUE(IsOld(scratch)) << write;
    EXPECT_FALSE(scratch.Exists("out.ullage-partial")) << write;
  }
}

TEST(AtomicDirectory, AFailingRenameOrSyncKeepsTheOldOne) {
  for (bool can_exchange : {true, false}) {
    for (std::int64_t operation = 0; operation < 2; ++operation) {
      Scratch scratch;
      PosixFileSystem real;
      WriteOld(scratch);
      if (operation == 0 || !can_exchange) {
        FaultyFileSystem fs(real, {.failed_rename_at = operation, .can_exchange = can_exchange});
        EXPECT_THROW(WriteNew(fs, scratch / "out"), IoError) << operation;
        EXPECT_TRUE(IsOld(scratch)) << operation;
        EXPECT_FALSE(scratch.Exists("out.ullage-old")) << operation;
      }
      FaultyFileSystem fs(real, {.failed_sync_at = operation, .can_exchange = can_exchange});
      EXPECT_THROW(WriteNew(fs, scratch / "out"), IoError) << operation;
      EXPECT_TRUE(IsOld(scratch)) << operation;
    }
  }
}

// Kills after every single change of the file system: what is then found under the name, after
// Recover, is the old directory or the complete new one.
TEST(AtomicDirectory, AKillAtAnyMomentLeavesTheOldOrTheNewOne) {
  for (bool can_exchange : {true, false}) {
    PosixFileSystem real;
    int old_found = 0, new_found = 0;
    for (std::int64_t change = 0;; ++change) {
      Scratch scratch;
      WriteOld(scratch);
      FaultyFileSystem fs(real, {.killed_after_changes = change, .can_exchange = can_exchange});
      bool killed = false;
      try {
        WriteNew(fs, scratch / "out");
      } catch (const IoError&) {
        killed = true;
      }
      if (can_exchange) {
        EXPECT_TRUE(scratch.Exists("out")) << change;  // at every moment
      }
      AtomicDirectory::Recover(real, scratch / "out");
      ASSERT_TRUE(IsOld(scratch) || IsNew(scratch)) << change;
      ++(IsOld(scratch) ? old_found : new_found);
      WriteNew(real, scratch / "out");  // leftovers are no obstacle
      EXPECT_TRUE(IsNew(scratch));
      EXPECT_FALSE(scratch.Exists("out.ullage-partial"));
      EXPECT_FALSE(scratch.Exists("out.ullage-old"));
      if (!killed) break;
    }
    EXPECT_GT(old_found, 13);
    EXPECT_GT(new_found, 1);
  }
}

TEST(AtomicDirectory, RefusesTargetsThatCannotBeReplaced) {
  Scratch scratch;
  PosixFileSystem fs;
  for (const char* target : {"", "/", ".", "..", "a/..", "a/."}) {
    EXPECT_THROW(AtomicDirectory(fs, target), ConfigError) << target;
  }
  scratch.Write("file", "x");
  EXPECT_NE(MessageOf<IoError>([&] { AtomicDirectory(fs, scratch / "file"); }).find("not a folder"),
            std::string::npos);
  EXPECT_EQ(scratch.Read("file"), "x");
}

}  // namespace
}  // namespace ullage::files
