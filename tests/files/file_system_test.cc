#include "files/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include "files/faulty_file_system.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::Scratch;

TEST(FileSystem, WritesAppendsAndReadsRanges) {
  Scratch scratch;
  PosixFileSystem fs;
  const auto file = fs.Create(scratch / "a");
  file->Append("hello ", 6);
  file->Append("world", 5);
  file->WriteAt(0, "J", 1);
  EXPECT_EQ(file->end(), 11);
  file->Sync();
  file->Close();
  const auto more = fs.OpenForAppend(scratch / "a");
  more->Append("!", 1);
  more->Close();
  char text[5] = {};
  fs.OpenForRead(scratch / "a")->ReadAt(8, text, 4);
  EXPECT_STREQ(text, "rld!");
  EXPECT_EQ(fs.ReadText(scratch / "a", 100), "Jello world!");
}

TEST(FileSystem, RangesOutsideTheFileNameThePathAndTheByte) {
  Scratch scratch;
  PosixFileSystem fs;
  const auto file = fs.OpenForRead(scratch.Write("a", "12345"));
  char out[8];
  const std::string message = MessageOf<IoError>([&] { file->ReadAt(3, out, 4); });
  EXPECT_EQ(message.find((scratch / "a") + ": asked for 4 bytes at byte 3, but the file has 5"), 0u)
      << message;
  EXPECT_THROW(file->ReadAt(-1, out, 1), IoError);
  EXPECT_THROW(file->ReadAt(INT64_MAX, out, INT64_MAX), IoError);
}

TEST(FileSystem, NoticesThatAFileShrankAfterOpening) {
  Scratch scratch;
  PosixFileSystem fs;
  const auto file = fs.OpenForRead(scratch.Write("a", "12345678"));
  ASSERT_EQ(truncate((scratch / "a").c_str(), 6), 0);
  char out[8];
  EXPECT_NE(MessageOf<IoError>([&] { file->ReadAt(0, out, 8); }).find("ends at byte 6"),
            std::string::npos);
}

TEST(FileSystem, RefusesFoldersPipesAndMissingFiles) {
  Scratch scratch;
  PosixFileSystem fs;
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(fs.OpenForRead(scratch / "pipe"), IoError);  // and does not wait for a writer
  EXPECT_THROW(fs.OpenForRead(scratch.path()), IoError);
  EXPECT_NE(MessageOf<IoError>([&] { fs.OpenForRead(scratch / "none"); }).find("hint: check the"),
            std::string::npos);
}

TEST(FileSystem, RemoveTreeDoesNotFollowLinks) {
  Scratch scratch;
  PosixFileSystem fs;
  fs.CreateDirectories(scratch / "keep");
  scratch.Write("keep/file", "x");
  fs.CreateDirectories(scratch / "tree/deep/er");
  scratch.Write("tree/deep/file", "x");
  std::filesystem::create_symlink(scratch / "keep", scratch / "tree/link");
  std::filesystem::create_symlink(scratch / "nowhere", scratch / "tree/dangling");
  fs.RemoveTree(scratch / "tree");
  fs.RemoveTree(scratch / "tree");  // is content when nothing is there
  EXPECT_FALSE(scratch.Exists("tree"));
  EXPECT_EQ(scratch.Read("keep/file"), "x");
}

TEST(FileSystem, ReadTextStopsAtItsLimit) {
  Scratch scratch;
  PosixFileSystem fs;
  scratch.Write("a", "12345");
  EXPECT_EQ(fs.ReadText(scratch / "a", 5), "12345");
  EXPECT_THROW(fs.ReadText(scratch / "a", 4), IoError);
}

TEST(FaultyFileSystem, AShortWriteIsCarriedOn) {
  Scratch scratch;
  PosixFileSystem real;
  FaultyFileSystem fs(real, {.short_write_at = 0});
  fs.Create(scratch / "a")->Append("0123456789", 10);
  EXPECT_EQ(scratch.Read("a"), "0123456789");
  EXPECT_EQ(fs.writes(), 2);
}

TEST(FaultyFileSystem, AFullDiskNamesPathByteAndRemedy) {
  Scratch scratch;
  PosixFileSystem real;
  FaultyFileSystem fs(real, {.full_disk_at_write = 1});
  const auto file = fs.Create(scratch / "a");
  file->Append("0123456789", 10);
  const std::string message = MessageOf<IoError>([&] { file->Append("x", 1); });
  EXPECT_EQ(message, (scratch / "a") +
                         ": cannot write 1 bytes at byte 10: No space left on device\n"
                         "hint: free space there or write to another disk");
}

TEST(FaultyFileSystem, FlipsBitsFailsReadsAndEndsAtAByte) {
  Scratch scratch;
  PosixFileSystem real;
  scratch.Write("a", "AAAA");
  FaultyFileSystem flips(real, {.flipped_bits = {{2, 1}}});
  EXPECT_EQ(flips.ReadText(scratch / "a", 10), "AACA");
  FaultyFileSystem broken(real, {.failed_read_at = 0});
  EXPECT_NE(MessageOf<IoError>([&] { broken.ReadText(scratch / "a", 10); }).find("Input/output"),
            std::string::npos);
  FaultyFileSystem killed(real, {.killed_after_bytes = 3});
  EXPECT_THROW(killed.Create(scratch / "b")->Append("12345", 5), IoError);
  EXPECT_EQ(scratch.Read("b"), "123");
  EXPECT_THROW(killed.Remove(scratch / "b"), IoError);
  EXPECT_TRUE(scratch.Exists("b"));
}

}  // namespace
}  // namespace ullage::files
