#include "data/dataset.h"

#include "../files/scratch.h"
#include "sample_data.h"
#include "ullage/error.h"

namespace ullage::data {
namespace {

using testsupport::MessageOf;
using testsupport::OpenData;
using testsupport::Scratch;
using testsupport::WriteTokens;

std::vector<std::int32_t> Tokens(const Dataset& data, std::int64_t record) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(data.Length(record)));
  data.ReadTokens(record, ids.data());
  return ids;
}

TEST(Dataset, TruncationKeepsTheFirstTokensAndTheLast) {
  Scratch scratch;
  WriteTokens(scratch / "t", {{1, 2, 3, 4, 5}, {1, 2, 5}, {1, 5}}, {0, 1, 0});
  const Dataset whole = OpenData(scratch / "t");
  EXPECT_EQ(Tokens(whole, 0), (std::vector<std::int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(whole.truncated_records(), 0);
  const Dataset cut = OpenData(scratch / "t", 3);
  EXPECT_EQ(Tokens(cut, 0), (std::vector<std::int32_t>{1, 2, 5}));
  EXPECT_EQ(Tokens(cut, 1), (std::vector<std::int32_t>{1, 2, 5}));
  EXPECT_EQ(Tokens(cut, 2), (std::vector<std::int32_t>{1, 5}));
  EXPECT_EQ(cut.truncated_records(), 1);
  EXPECT_EQ(cut.Label(1), 1);
  EXPECT_THROW(OpenData(scratch / "t", 1), ConfigError);
  EXPECT_THROW(OpenData(scratch / "t", -4), ConfigError);
}

std::string CheckError(const Dataset& data, const ModelLimits& limits) {
  return MessageOf<ConfigError>([&] { data.CheckFor(limits); });
}

TEST(Dataset, NamesTheRecordThatTheModelCannotTake) {
  Scratch scratch;
  WriteTokens(scratch / "t", {{1, 2}, {3, 4, 120}, {5}}, {0, 2, -100}, 3);
  const Dataset data = OpenData(scratch / "t");
  data.CheckFor({.vocab_size = 121, .max_positions = 3, .num_labels = 3});
  EXPECT_NE(CheckError(data, {.vocab_size = 120}).find("record 1: token 2 is 120"),
            std::string::npos);
  EXPECT_NE(CheckError(data, {.vocab_size = 99}).find("pad_token_id is 99"), std::string::npos);
  EXPECT_NE(CheckError(data, {.max_positions = 2}).find("record 1 has 3 tokens"),
            std::string::npos);
  EXPECT_NE(CheckError(data, {.max_positions = 2}).find("hint: truncate with --max-length 2"),
            std::string::npos);
  EXPECT_NE(CheckError(data, {.num_labels = 2}).find("record 1 has label 2"), std::string::npos);
  OpenData(scratch / "t", 2).CheckFor({.vocab_size = 121, .max_positions = 2, .num_labels = 3});
}

TEST(Dataset, ANegativeTokenIdIsNamed) {
  Scratch scratch;
  WriteTokens(scratch / "t", {{1, 2}, {-1}}, {0, 1});
  EXPECT_NE(
      CheckError(OpenData(scratch / "t"), {.vocab_size = 200}).find("record 1: token 0 is -1"),
      std::string::npos);
}

TEST(Dataset, TokensFarIntoAFileAreCheckedToo) {
  Scratch scratch;
  std::vector<std::vector<std::int32_t>> records(3000, std::vector<std::int32_t>(100, 1));
  records[2990][7] = 500;
  WriteTokens(scratch / "t", records, std::vector<std::int64_t>(3000, 1));
  EXPECT_NE(
      CheckError(OpenData(scratch / "t"), {.vocab_size = 200}).find("record 2990: token 7 is 500"),
      std::string::npos);
}

TEST(Dataset, RefusesAnEmptyFileAndOneWithoutLabels) {
  Scratch scratch;
  WriteTokens(scratch / "empty", {}, {});
  EXPECT_NE(CheckError(OpenData(scratch / "empty"), {}).find("holds no records"),
            std::string::npos);
  WriteTokens(scratch / "ignored", {{1}, {2}}, {-100, -100});
  EXPECT_NE(CheckError(OpenData(scratch / "ignored"), {}).find("-100"), std::string::npos);
}

}  // namespace
}  // namespace ullage::data
