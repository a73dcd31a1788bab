#include "files/zip_archive.h"

#include "memory_file.h"
#include "scratch.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::LittleEndian;
using testsupport::MemoryFile;
using testsupport::MessageOf;
using testsupport::StoredZip;

ZipArchive Open(const std::string& bytes) {
  MemoryFile fs(bytes);
  return ZipArchive::Open(*fs.OpenForRead("z"));
}

std::string OpenError(const std::string& bytes) {
  return MessageOf<IoError>([&] { Open(bytes); });
}

// `bytes` with `change` in the place of what is there, `at` bytes behind the first `mark`.
std::string Changed(std::string bytes, const std::string& mark, std::size_t at,
                    const std::string& change) {
  return bytes.replace(bytes.find(mark) + at, change.size(), change);
}

const std::string kLocal = "PK\3\4", kListed = "PK\1\2", kEnd = "PK\5\6";

TEST(ZipArchive, SaysWhereTheBytesOfEachEntryAre) {
  const std::string bytes = StoredZip({{"a/one", "first"}, {"a/none", ""}, {"a/two", "second"}});
  const ZipArchive archive = Open(bytes);
  ASSERT_EQ(archive.entries().size(), 3u);
  const ZipEntry* two = archive.Find("a/two");
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(bytes.substr(static_cast<std::size_t>(two->offset), 6), "second");
  EXPECT_EQ(two->bytes, 6);
  EXPECT_EQ(archive.Find("a/none")->bytes, 0);
  EXPECT_EQ(archive.Find("a/three"), nullptr);
}

TEST(ZipArchive, ReadsTheEndRecordWith64Bits) {
  const std::string plain = StoredZip({{"x", "data"}});
  const std::size_t end = plain.find(kEnd), directory = plain.find(kListed);
  const std::string wide = "PK\6\6" + LittleEndian(44, 8) + LittleEndian(0, 4) +
                           LittleEndian(0, 4) + LittleEndian(0, 4) + LittleEndian(1, 8) +
                           LittleEndian(1, 8) + LittleEndian(end - directory, 8) +
                           LittleEndian(directory, 8) + "PK\6\7" + LittleEndian(0, 4) +
                           LittleEndian(end, 8) + LittleEndian(1, 4);
  const std::string bytes = plain.substr(0, end) + wide + kEnd + LittleEndian(0, 4) +
                            std::string(12, '\xff') + LittleEndian(0, 2);
  EXPECT_EQ(Open(bytes).Find("x")->bytes, 4);
  EXPECT_NE(OpenError(Changed(bytes, "PK\6\7", 8, LittleEndian(end + 1, 8)))
                .find("the 64-bit end record is not where"),
            std::string::npos);
  EXPECT_NE(OpenError(Changed(bytes, "PK\6\6", 40, LittleEndian(1ULL << 60, 8)))
                .find("is said to be 1152921504606846976 bytes"),
            std::string::npos);
}

TEST(ZipArchive, ReadsSizesWith64Bits) {
  std::string bytes = StoredZip({{"x", "data"}});
  const std::size_t listed = bytes.find(kListed);
  const std::string sizes =
      LittleEndian(1, 2) + LittleEndian(16, 2) + LittleEndian(4, 8) + LittleEndian(4, 8);
  bytes.insert(listed + 46 + 1, sizes);
  bytes.replace(listed + 20, 8, std::string(8, '\xff'));
  bytes.replace(listed + 30, 2, LittleEndian(sizes.size(), 2));
  bytes = Changed(bytes, kEnd, 12, LittleEndian(46 + 1 + sizes.size(), 4));
  EXPECT_EQ(Open(bytes).Find("x")->bytes, 4);
  bytes.replace(listed + 46 + 1, 2, LittleEndian(2, 2));  // another kind of field
  EXPECT_NE(OpenError(bytes).find("the field with 64-bit sizes is missing"), std::string::npos);
}

TEST(ZipArchive, WhatAPlainArchiveHasNotIsRefused) {
  const std::string good = StoredZip({{"x", "data"}, {"y", "more"}});
  ASSERT_EQ(Open(good).entries().size(), 2u);
  const struct {
    std::string bytes;
    const char* part;
  } cases[] = {
      {"", "too short for a zip file"},
      {good.substr(0, good.size() - 1), "no end of a zip directory"},
      {good + "x", "no end of a zip directory"},
      {Changed(good, kEnd, 4, LittleEndian(1, 2)), "one of several parts"},
      {Changed(good, kEnd, 8, LittleEndian(0x00030003, 4)), "the directory of 3 entries is said"},
      {Changed(good, kEnd, 16, LittleEndian(1, 4)), "it must end at"},
      {Changed(good, kListed, 8, LittleEndian(1, 2)), "\"x\" is encrypted"},
      {Changed(good, kListed, 20, LittleEndian(5, 4)), "\"x\" of 5 bytes at 0 does not lie"},
      {Changed(good, kListed, 20, LittleEndian(0x0000000500000005, 8)), "\"x\" overlaps"},
      {Changed(good, kListed, 42, LittleEndian(2000, 4)), "at 2000 does not lie before"},
      {Changed(good, kListed, 42, LittleEndian(1, 4)), "\"x\" does not begin here"},
      {Changed(good, kListed, 46, "y"), "\"y\" is another one in its own header"},
      {Changed(good, kLocal, 8, LittleEndian(8, 2)), "\"x\" is another one in its own header"},
      {StoredZip({{"x", "1"}, {"x", "2"}}), "\"x\" comes twice"},
  };
  for (const auto& c : cases) {
    EXPECT_NE(OpenError(c.bytes).find(c.part), std::string::npos) << c.part << OpenError(c.bytes);
  }
}

TEST(ZipArchive, CompressedEntriesAreMarked) {
  std::string bytes = StoredZip({{"x", "data"}, {"y", "more"}});
  bytes = Changed(Changed(bytes, kListed, 10, LittleEndian(8, 2)), kLocal, 8, LittleEndian(8, 2));
  bytes = Changed(bytes, kListed, 24, LittleEndian(1000, 4));
  EXPECT_TRUE(Open(bytes).Find("x")->compressed);
  EXPECT_EQ(Open(bytes).Find("x")->bytes, 4);
  EXPECT_FALSE(Open(bytes).Find("y")->compressed);
}

TEST(ZipArchive, TwoEntriesOfTheSameBytesAreRefused) {
  std::string bytes = StoredZip({{"x", "data"}, {"x", "data"}});
  const std::size_t second = bytes.find(kListed, bytes.find(kListed) + 1);
  bytes.replace(second + 42, 4, LittleEndian(0, 4));
  EXPECT_NE(OpenError(bytes).find("overlaps what follows"), std::string::npos);
}

TEST(ZipArchive, AFlippedBitOfAnEntryIsSeenByItsCrc) {
  EXPECT_EQ(Crc32(0, "123456789", 9), 0xCBF43926u);
  const std::string good = StoredZip({{"x", std::string(200'000, 'd')}});
  MemoryFile fs(good);
  const auto file = fs.OpenForRead("z");
  const ZipArchive archive = ZipArchive::Open(*file);
  EXPECT_NO_THROW(ZipArchive::Verify(*file, archive.entries()[0]));
  MemoryFile damaged_fs(std::string(good).replace(150'000, 1, "e"));
  const auto damaged = damaged_fs.OpenForRead("z");
  EXPECT_NE(
      MessageOf<IoError>([&] { ZipArchive::Verify(*damaged, archive.entries()[0]); }).find("CRC"),
      std::string::npos);
}

}  // namespace
}  // namespace ullage::files
