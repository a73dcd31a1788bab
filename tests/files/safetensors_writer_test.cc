#include "files/safetensors_writer.h"

#include <vector>

#include "files/faulty_file_system.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::Scratch;

const std::vector<TensorDeclaration> kTwo = {{"w", ElementType::kF32, {2, 2}},
                                             {"empty", ElementType::kI64, {0}},
                                             {"b", ElementType::kF16, {3}}};

void WriteTwo(FileSystem& fs, const std::string& path) {
  SafetensorsWriter writer(fs, path, kTwo, {{"format", "pt"}});
  const float w[4] = {1, 2, 3, 4};
  const std::uint16_t b[3] = {5, 6, 7};
  writer.Append(w, 6);  // pieces need not respect elements
  writer.Append(reinterpret_cast<const char*>(w) + 6, 10);
  writer.Append(b, 6);
  writer.Finish();
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  Scratch scratch;
  PosixFileSystem fs;
  WriteTwo(fs, scratch / "t");
  EXPECT_FALSE(scratch.Exists("t.partial"));
  const auto file = SafetensorsFile::Open(fs, scratch / "t");
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors()[0].offset % 8, 0);
  float w = 0;
  file.Read("w", 3, 1, &w);
  EXPECT_EQ(w, 4);
  std::uint16_t b[2] = {};
  file.Read("b", 1, 2, b);
  EXPECT_EQ(b[0], 6);
  EXPECT_EQ(b[1], 7);
}

TEST(SafetensorsWriter, NothingAppearsBeforeFinish) {
  Scratch scratch;
  PosixFileSystem fs;
  scratch.Write("t", "old");
  {
    SafetensorsWriter writer(fs, scratch / "t", kTwo);
    EXPECT_EQ(writer.data_bytes(), 22);
    EXPECT_EQ(scratch.Read("t"), "old");
    EXPECT_THROW(writer.Finish(), StateError);
    const char bytes[23] = {};
    EXPECT_THROW(writer.Append(bytes, 23), StateError);
  }
  EXPECT_EQ(scratch.Read("t"), "old");
  EXPECT_FALSE(scratch.Exists("t.partial"));
}

TEST(SafetensorsWriter, RefusesDeclarationsThatCannotBeReadBack) {
  Scratch scratch;
  PosixFileSystem fs;
  const auto declare = [&](std::vector<TensorDeclaration> tensors) {
    return MessageOf<ConfigError>([&] { SafetensorsWriter(fs, scratch / "t", tensors); });
  };
  EXPECT_NE(declare({{"a", ElementType::kF32, {1}}, {"a", ElementType::kF32, {1}}}).find("\"a\""),
            std::string::npos);
  EXPECT_NE(declare({{"__metadata__", ElementType::kF32, {1}}}).find("__metadata__"),
            std::string::npos);
  EXPECT_NE(declare({{"a", ElementType::kF32, {-1}}}).find("negative"), std::string::npos);
  EXPECT_NE(declare({{"a", ElementType::kF64, {1LL << 60}}}).find("2^63"), std::string::npos);
  EXPECT_NE(declare({{"a\xff", ElementType::kF64, {1}}}).find("UTF-8"), std::string::npos);
  EXPECT_FALSE(scratch.Exists("t.partial"));
}

// The write with a full disk, a failing fsync or rename, and a kill at every byte: the old file
// stays, and after an error that is no kill nothing else is left behind.
TEST(SafetensorsWriter, AFullDiskKeepsTheOldFileAndLeavesNothing) {
  Scratch scratch;
  PosixFileSystem real;
  for (std::int64_t write = 0; write < 4; ++write) {
    scratch.Write("t", "old");
    FaultyFileSystem fs(real, {.full_disk_at_write = write});
    EXPECT_NE(MessageOf<IoError>([&] { WriteTwo(fs, scratch / "t"); }).find("No space left"),
              std::string::npos);
    EXPECT_EQ(scratch.Read("t"), "old") << write;
    EXPECT_FALSE(scratch.Exists("t.partial")) << write;
  }
  FaultyFileSystem sync(real, {.failed_sync_at = 0});
  EXPECT_THROW(WriteTwo(sync, scratch / "t"), IoError);
  FaultyFileSystem rename(real, {.failed_rename_at = 0});
  EXPECT_THROW(WriteTwo(rename, scratch / "t"), IoError);
  EXPECT_EQ(scratch.Read("t"), "old");
  EXPECT_FALSE(scratch.Exists("t.partial"));
}

TEST(SafetensorsWriter, ShortWritesAreCarriedOn) {
  Scratch scratch;
  PosixFileSystem real;
  WriteTwo(real, scratch / "whole");
  for (std::int64_t write = 0; write < 4; ++write) {
    FaultyFileSystem fs(real, {.short_write_at = write});
    WriteTwo(fs, scratch / "t");
    EXPECT_EQ(scratch.Read("t"), scratch.Read("whole")) << write;
  }
}

TEST(SafetensorsWriter, AKillAtAnyByteKeepsTheOldFile) {
  Scratch scratch;
  PosixFileSystem real;
  FaultyFileSystem counting(real, {});
  WriteTwo(counting, scratch / "whole");
  ASSERT_GT(counting.written_bytes(), 200);
  scratch.Write("t", "old");
  for (std::int64_t byte = 0; byte <= counting.written_bytes(); ++byte) {
    FaultyFileSystem fs(real, {.killed_after_bytes = byte});
    EXPECT_THROW(WriteTwo(fs, scratch / "t"), IoError);
    ASSERT_EQ(scratch.Read("t"), "old") << byte;
  }
  WriteTwo(real, scratch / "t");  // a leftover is no obstacle
  EXPECT_EQ(scratch.Read("t"), scratch.Read("whole"));
}

}  // namespace
}  // namespace ullage::files
