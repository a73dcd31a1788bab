// Ranges of a checkpoint, read over files and blocks, and what damaged files get.
#include "checkpoint/checkpoint_reader.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "base/parallel.h"
#include "checkpoint/block_checksums.h"
#include "checkpoint/small_checkpoint.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

using testsupport::MessageOf;

class Reader : public testing::Test {
 protected:
  void SetUp() override {
    testsupport::WriteSmallCheckpoint(fs_, directory_);
    SetWorkers(3);
  }
  void TearDown() override { SetWorkers(1); }

  std::string Shard(int rank) const { return directory_ + "/" + ShardName(rank, 2); }

  static void FlipBit(const std::string& path, std::int64_t byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte);
    const auto value = static_cast<char>(file.get() ^ 4);
    file.seekp(byte);
    file.put(value);
  }

  files::PosixFileSystem fs_;
  testsupport::Scratch scratch_;
  const std::string directory_ = scratch_ / "step-00000009";
};

TEST_F(Reader, GivesRangesThatLieInSeveralFilesAndBlocks) {
  const CheckpointReader reader(fs_, directory_);
  std::vector<Range> ranges;
  const Tensor* wide = reader.Find("wide");
  ASSERT_EQ(reader.Find("tied too"), wide);
  const std::pair<std::int64_t, std::int64_t> spans[] = {{0, testsupport::kWide},
                                                         {testsupport::kCut - 1, 2},
                                                         {testsupport::kCut, 1},
                                                         {0, 0},
                                                         {5, 270'000}};
  for (int part = 0; part < 3; ++part) {
    for (const auto& [first, numel] : spans) {
      ranges.push_back(
          {wide, testsupport::WideParts()[static_cast<std::size_t>(part)], first, numel});
    }
  }
  std::vector<std::vector<float>> found;
  for (const Range& range : ranges)
    found.emplace_back(static_cast<std::size_t>(range.numel), -1.0f);
  reader.Read(ranges,
              [&](std::size_t i, std::int64_t first, const std::byte* values, std::int64_t count) {
                std::memcpy(found[i].data() + (first - ranges[i].first), values,
                            static_cast<std::size_t>(4 * count));
              });
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::int64_t at = 0; at < ranges[i].numel; ++at) {
      ASSERT_EQ(
          found[i][static_cast<std::size_t>(at)],
          testsupport::WideValue(static_cast<int>(i / std::size(spans)), ranges[i].first + at))
          << "range " << i << ", element " << at;
    }
  }
}

TEST_F(Reader, ReadsOneRangeInOrder) {
  const CheckpointReader reader(fs_, directory_);
  std::vector<float> values(300'000);
  reader.ReadInto({reader.Find("wide"), "exp_avg", 250'000, 300'000},
                  reinterpret_cast<std::byte*>(values.data()));
  for (std::int64_t i = 0; i < 300'000; ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i)], testsupport::WideValue(1, 250'000 + i));
  }
  std::uint16_t half = 0;
  reader.ReadInto({reader.Find("frozen"), "weight", 4, 1}, reinterpret_cast<std::byte*>(&half));
  EXPECT_EQ(half, 5);
  reader.VerifyAll();
}

TEST_F(Reader, NamesTheBytesThatAreDamaged) {
  const std::int64_t bytes = std::filesystem::file_size(Shard(1));
  FlipBit(Shard(1), bytes - 3);
  const CheckpointReader reader(fs_, directory_);
  const auto read = [&](std::int64_t first, std::int64_t numel) {
    std::vector<float> values(static_cast<std::size_t>(numel));
    reader.ReadInto({reader.Find("wide"), "exp_avg_sq", first, numel},
                    reinterpret_cast<std::byte*>(values.data()));
  };
  EXPECT_NO_THROW(read(0, 100));  // what lies elsewhere can be had
  const std::string message = MessageOf<IoError>([&] { read(testsupport::kWide - 10, 1); });
  EXPECT_NE(message.find(Shard(1)), std::string::npos) << message;
  const std::int64_t begin = (bytes - 3) / kBlockBytes * kBlockBytes;
  EXPECT_NE(message.find(fmt::format("bytes {} to {} are damaged", begin, bytes - 1)),
            std::string::npos)
      << message;
  EXPECT_THROW(reader.VerifyAll(), IoError);
}

TEST_F(Reader, NoticesADamagedHeader) {
  // A letter of a tensor's name: the header is as good JSON as before.
  const std::string text = scratch_.Read("step-00000009/" + ShardName(0, 2));
  FlipBit(Shard(0), static_cast<std::int64_t>(text.find("exp_avg_sq.wide")));
  const CheckpointReader reader(fs_, directory_);
  EXPECT_THROW(reader.VerifyAll(), IoError);
}

TEST_F(Reader, RefusesAMissingOrShortenedFile) {
  const std::int64_t bytes = std::filesystem::file_size(Shard(1));
  std::filesystem::resize_file(Shard(1), static_cast<std::uintmax_t>(bytes - 1));
  std::string message = MessageOf<IoError>([&] { CheckpointReader(fs_, directory_); });
  EXPECT_NE(message.find(fmt::format("has {} bytes, manifest.json says {}", bytes - 1, bytes)),
            std::string::npos)
      << message;
  std::filesystem::remove(Shard(1));
  message = MessageOf<IoError>([&] { CheckpointReader(fs_, directory_); });
  EXPECT_NE(message.find("is missing; the checkpoint has 2 files"), std::string::npos) << message;
}

TEST_F(Reader, RefusesAFileOfAnotherCheckpoint) {
  // Sound by itself, and its checksums are those of the manifest; but it lacks what is promised.
  fs_.CreateDirectories(scratch_ / "other");
  Manifest manifest = testsupport::SmallManifest(
      {testsupport::WriteShard(fs_, scratch_ / "other", 0, 0, testsupport::kCut - 1),
       testsupport::WriteShard(fs_, scratch_ / "other", 1, testsupport::kCut, testsupport::kWide)});
  scratch_.Write("other/manifest.json", ToText(manifest));
  const CheckpointReader reader(fs_, scratch_ / "other");
  const std::string message = MessageOf<IoError>([&] { reader.VerifyAll(); });
  EXPECT_NE(message.find("has no tensor \"master.wide\" of 400000 elements"), std::string::npos)
      << message;
}

TEST_F(Reader, SaysThatAFolderIsNoCheckpoint) {
  std::filesystem::remove(directory_ + "/manifest.json");
  const std::string message = MessageOf<IoError>([&] { CheckpointReader(fs_, directory_); });
  EXPECT_NE(message.find("no complete checkpoint"), std::string::npos) << message;
}

TEST_F(Reader, WritesNoElementInTwoBlocks) {
  EXPECT_THROW(
      ShardWriter(fs_, directory_, "x.safetensors",
                  {{"a", files::ElementType::kBF16, {1}}, {"b", files::ElementType::kF32, {1}}}),
      StateError);
  EXPECT_FALSE(scratch_.Exists("step-00000009/x.safetensors.partial"));
}

}  // namespace
}  // namespace ullage::checkpoint
