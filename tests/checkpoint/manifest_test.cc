// The manifest: what it keeps, and that nothing in it is believed.
#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "checkpoint/block_checksums.h"
#include "checkpoint/small_checkpoint.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

using testsupport::MessageOf;

const std::string kPath = "manifest.json";

std::vector<File> TwoFiles() {
  return {{"rank-0.safetensors", 3 * kBlockBytes + 1, {1, 2, 3, ~std::uint64_t{0}}},
          {"rank-1.safetensors", 100, {0xabc}}};
}

std::string GoodText() {
  return ToText(testsupport::SmallManifest(TwoFiles()));
}

// `text` with `from` replaced and its checksum made right again, as a hostile writer would.
std::string Changed(const std::string& from, const std::string& to) {
  std::string text = GoodText();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  text.resize(text.rfind(",\n\"checksum\""));
  return text +
         fmt::format(",\n\"checksum\": \"{:016x}\"\n}}\n", Checksum(text.data(), std::ssize(text)));
}

TEST(Manifest, ComesBackAsItWasWritten) {
  const Manifest manifest = ParseManifest(kPath, GoodText());
  EXPECT_EQ(ToText(manifest), GoodText());
  EXPECT_EQ(manifest.applied_steps, 7);
  EXPECT_EQ(manifest.steps(), 9);
  EXPECT_EQ(manifest.seed, ~std::uint64_t{0});
  EXPECT_EQ(manifest.loss_scale.last_overflow, 3);
  EXPECT_EQ(manifest.client_state, "{\"a\": \"\\u00e9\"}\n");
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files[0].checksums, TwoFiles()[0].checksums);
  ASSERT_EQ(manifest.tensors.size(), 3u);
  EXPECT_EQ(manifest.tensors[0].aliases[1], "tied too");
  EXPECT_EQ(manifest.tensors[0].slices[1], (Slice{1, testsupport::kCut, 300'001}));
  EXPECT_EQ(manifest.tensors[2].numel, 0);
  EXPECT_EQ(manifest.PartsOf(manifest.tensors[0]).size(), 3u);
  EXPECT_EQ(manifest.PartsOf(manifest.tensors[1]).front(), "weight");
}

TEST(Manifest, IsRefusedWhateverBitIsFlipped) {
  const std::string good = GoodText();
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 5}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      EXPECT_THROW(ParseManifest(kPath, bad), IoError) << "byte " << i;
    }
  }
}

TEST(Manifest, IsRefusedWhereverItIsCutOff) {
  const std::string good = GoodText();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(ParseManifest(kPath, good.substr(0, size)), IoError) << size;
  }
}

TEST(Manifest, OfANewerVersionIsRefusedByName) {
  const std::string message = MessageOf<UnsupportedError>(
      [] { ParseManifest(kPath, Changed("\"version\": 1", "\"version\": 2")); });
  EXPECT_NE(message.find("version 2"), std::string::npos) << message;
  EXPECT_NE(message.find("hint: load it with the version"), std::string::npos) << message;
}

TEST(Manifest, OfAHostileWriterIsRefusedWithTheReason) {
  const struct {
    const char* from;
    const char* to;
    const char* reason;
  } cases[] = {
      {"rank-0.safetensors", "../../etc/passwd", "no plain file name"},
      {"rank-0.safetensors", "/dev/zero", "no plain file name"},
      {"rank-0.safetensors", ".hidden", "no plain file name"},
      {"rank-1.safetensors", "rank-0.safetensors", "comes twice"},
      {"\"bytes\":100", "\"bytes\":1152921504606846976", "blocks"},
      {"\"bytes\":100", "\"bytes\":-1", "from 8 to"},
      {"\"bytes\":100", "\"bytes\":1e3", "whole number"},
      {"0000000000000abc", "000000000000zabc", "not hexadecimal"},
      {"[700001]", "[1152921504606846976,1152921504606846976]", "more than 2^63 bytes"},
      {"[700001]", "[-1]", "shape"},
      {"[1,400000,300001]", "[1,399999,300002]", "do not follow"},
      {"[1,400000,300001]", "[1,400000,300000]", "end at element 700000 of 700001"},
      {"[1,400000,300001]", "[2,400000,300001]", "from 0 to 1"},
      {"[1,400000,300001]", "[1,400000,9223372036854775807]", "do not follow"},
      {"[1,400000,300001]", "[1,400000]", "no list of 3"},
      {"\"name\":\"frozen\"", "\"name\":\"tied\"", "comes twice"},
      {"\"trained\"", "\"owned\"", "role"},
      {"\"BF16\"", "\"BF17\"", "dtype"},
      {"\"exp_avg_sq\"", "\"../x\"", "not known"},
      {"\"seed\": 18446744073709551615", "\"seed\": -1", "seed"},
      {"\"stage\": 3", "\"stage\": 4", "from 0 to 3"},
      {"\"stage\": 3", "\"stage\": [[[[[[[[1]]]]]]]]", "nested deeper"},
      {"\"lr\": 0.1", "\"lr\": null", "a number"},
      {"\"format\": \"ullage-checkpoint\"", "\"format\": \"other\"", "format"},
      {"\"precision\"", "\"precisioN\"", "has no precision"},
  };
  for (const auto& c : cases) {
    const std::string message =
        MessageOf<IoError>([&] { ParseManifest(kPath, Changed(c.from, c.to)); });
    EXPECT_NE(message.find(c.reason), std::string::npos) << c.to << ": " << message;
    EXPECT_TRUE(message.starts_with(kPath)) << message;
  }
}

TEST(Manifest, OfNamesThatAreNotUtf8IsNotWritten) {
  Manifest manifest = testsupport::SmallManifest(TwoFiles());
  manifest.tensors[0].name = "\xff";
  EXPECT_THROW(ToText(manifest), ConfigError);
}

TEST(BlockChecksums, DoNotDependOnThePiecesThatTheyAreFed) {
  std::vector<unsigned char> bytes(2 * kBlockBytes + 77);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i >> 3);
  for (const std::int64_t piece : {std::int64_t{1000}, kBlockBytes, 3 * kBlockBytes}) {
    BlockChecksums checksums;
    for (std::int64_t at = 0; at < std::ssize(bytes); at += piece) {
      checksums.Update(bytes.data() + at, std::min(piece, std::ssize(bytes) - at));
    }
    const std::vector<std::uint64_t> all = checksums.Finish();
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[0], Checksum(bytes.data(), kBlockBytes));
    EXPECT_EQ(all[2], Checksum(bytes.data() + 2 * kBlockBytes, 77));
  }
  EXPECT_EQ(Checksum("ullage", 6), Checksum(std::string("ullage").data(), 6));
  // XXH3 of nothing, from its specification: other programs verify the files, too.
  EXPECT_EQ(Checksum("", 0), 0x2d06800538d394c2u);
}

}  // namespace
}  // namespace ullage::checkpoint
