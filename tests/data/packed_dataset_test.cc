#include "data/packed_dataset.h"

#include "../files/scratch.h"
#include "sample_data.h"
#include "ullage/error.h"

namespace ullage::data {
namespace {

using testsupport::Documents;
using testsupport::kPad;
using testsupport::MessageOf;
using testsupport::OpenPacked;
using testsupport::Scratch;
using testsupport::WriteDocuments;
using testsupport::WriteTokens;
using Ints = std::vector<std::int64_t>;

Ints Values(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  return Ints(data, data + tensor.numel());
}

std::vector<std::int32_t> Documented(const Batch& batch) {
  const auto* data = batch.document_ids.const_data_ptr<std::int32_t>();
  return std::vector<std::int32_t>(data, data + batch.document_ids.numel());
}

TEST(PackedDataset, CausalRowsHaveLabelsPositionsAndDocuments) {
  Scratch scratch;
  WriteDocuments(scratch / "t", {{1, 2, 3}, {4, 5, 6}, {7}});
  const PackedDataset data = OpenPacked(scratch / "t", 5);
  ASSERT_EQ(data.records(), 2);
  const Batch batch = data.MakeBatch(Ints{0, 1}, {});
  EXPECT_EQ(batch.input_ids.sizes().vec(), (Ints{2, 5}));
  EXPECT_EQ(Values(batch.input_ids), (Ints{1, 2, 3, 4, 5, 6, 7, kPad, kPad, kPad}));
  EXPECT_EQ(Values(batch.labels), (Ints{-100, 2, 3, -100, 5, -100, -100, -100, -100, -100}));
  EXPECT_EQ(Values(batch.position_ids), (Ints{0, 1, 2, 0, 1, 0, 0, 0, 1, 2}));
  EXPECT_EQ(Documented(batch), (std::vector<std::int32_t>{0, 0, 0, 1, 1, 0, 1, 2, 2, 2}));
  EXPECT_FALSE(batch.attention_mask.defined());
  EXPECT_EQ(batch.records, 2);
  EXPECT_EQ(batch.real_tokens, 7);
  EXPECT_EQ(batch.padded_tokens, 3);
  EXPECT_EQ(data.Length(0), 5);
  EXPECT_EQ(data.Length(1), 2);
  EXPECT_EQ(data.CountValidLabels(Ints{0, 1}), 3);
  EXPECT_EQ(data.CountValidLabels(Ints{1}), 0);
}

TEST(PackedDataset, InstructionRowsKeepRecordsWholeAndPromptsWithoutLabels) {
  Scratch scratch;
  const Documents ids = {{1, 2, 3}, {4, 5, 6, 7}, {8, 9}};
  WriteDocuments(scratch / "t", ids, {{-100, -100, 3}, {-100, -100, 6, 7}, {8, 9}});
  const PackedDataset data = OpenPacked(scratch / "t", 6);
  ASSERT_EQ(data.records(), 2);
  const Batch batch = data.MakeBatch(Ints{0, 1}, {});
  EXPECT_EQ(Values(batch.input_ids), (Ints{1, 2, 3, 8, 9, kPad, 4, 5, 6, 7, kPad, kPad}));
  // 8 is the first of its document: there is nothing to predict it from.
  EXPECT_EQ(Values(batch.labels),
            (Ints{-100, -100, 3, -100, 9, -100, -100, -100, 6, 7, -100, -100}));
  EXPECT_EQ(Values(batch.position_ids), (Ints{0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(data.CountValidLabels(Ints{0}), 2);
  EXPECT_EQ(data.CountValidLabels(Ints{0, 1}), 4);
}

TEST(PackedDataset, ARowOfOneDocumentNeedsNoMask) {
  Scratch scratch;
  WriteDocuments(scratch / "t", {{1, 2, 3, 4, 5, 6, 7}});
  const PackedDataset data = OpenPacked(scratch / "t", 4);
  const Batch batch = data.MakeBatch(Ints{0, 1}, {});
  EXPECT_EQ(Values(batch.input_ids), (Ints{1, 2, 3, 4, 5, 6, 7, kPad}));
  EXPECT_EQ(Values(batch.labels), (Ints{-100, 2, 3, 4, -100, 6, 7, -100}));
  EXPECT_FALSE(batch.position_ids.defined());
  EXPECT_FALSE(batch.document_ids.defined());
}

TEST(PackedDataset, ABatchMayHaveNoRows) {
  Scratch scratch;
  WriteDocuments(scratch / "t", {{1, 2}});
  const Batch batch = OpenPacked(scratch / "t", 4).MakeBatch({}, {});
  EXPECT_EQ(batch.input_ids.sizes().vec(), (Ints{0, 4}));
  EXPECT_EQ(batch.records, 0);
  EXPECT_EQ(batch.padded_tokens, 0);
}

TEST(PackedDataset, NamesTheRecordThatTheModelCannotTake) {
  Scratch scratch;
  WriteDocuments(scratch / "t", {{1, 2}, {3, 4, 5}}, {{-100, 2}, {-100, 150, 5}});
  const PackedDataset data = OpenPacked(scratch / "t", 4);
  const auto refusal = [](const PackedDataset& of, const ModelLimits& limits) {
    return MessageOf<ConfigError>([&] { of.CheckFor(limits); });
  };
  data.CheckFor({.vocab_size = 151, .max_positions = 4});
  EXPECT_NE(refusal(data, {.vocab_size = 150}).find("record 1: the label of token 1 is 150"),
            std::string::npos);
  EXPECT_NE(refusal(data, {.vocab_size = 99}).find("pad_token_id is 99"), std::string::npos);
  EXPECT_NE(refusal(data, {.max_positions = 3}).find("rows of 4 tokens, the model takes at most 3"),
            std::string::npos);
  WriteDocuments(scratch / "negative", {{1, 2}, {3, 4}}, {{-100, 2}, {-100, -7}});
  EXPECT_NE(refusal(OpenPacked(scratch / "negative", 4), {.vocab_size = 200})
                .find("record 1: the label of token 1 is -7"),
            std::string::npos);
  WriteDocuments(scratch / "causal", {{1, 2}, {300, 4}});
  EXPECT_NE(refusal(OpenPacked(scratch / "causal", 4), {.vocab_size = 200})
                .find("record 1: token 0 is 300"),
            std::string::npos);
}

TEST(PackedDataset, RefusesWhatTeachesNothing) {
  Scratch scratch;
  const auto refusal = [&](std::int64_t sequence_length) {
    return MessageOf<ConfigError>([&] { OpenPacked(scratch / "t", sequence_length).CheckFor({}); });
  };
  WriteDocuments(scratch / "t", {{1}, {2}, {3}});
  EXPECT_NE(refusal(4).find("no token has a label"), std::string::npos);
  WriteDocuments(scratch / "t", {{1, 2}}, {{1, -100}});  // the first token's counts nowhere
  EXPECT_NE(refusal(4).find("no token has a label"), std::string::npos);
  WriteDocuments(scratch / "t", {});
  EXPECT_NE(refusal(4).find("holds no records"), std::string::npos);
  EXPECT_NE(refusal(1).find("--sequence-length 1"), std::string::npos);
}

TEST(TrainingData, TheTaskOfTheFileDecidesWhatItIs) {
  Scratch scratch;
  files::PosixFileSystem fs;
  WriteTokens(scratch / "classes", {{1, 2, 3}}, {0});
  WriteDocuments(scratch / "causal", {{1, 2, 3}});
  const auto make = [&](const char* name) {
    return MakeTrainingData(files::TokenFile::Open(fs, scratch / name),
                            {.max_length = 2, .sequence_length = 8});
  };
  EXPECT_EQ(make("classes")->task(), files::TokenTask::kClassification);
  EXPECT_EQ(Lengths(*make("classes")), (Ints{2}));
  EXPECT_EQ(make("causal")->task(), files::TokenTask::kCausal);
  EXPECT_EQ(make("causal")->MakeBatch(Ints{0}, {}).input_ids.size(1), 8);
  EXPECT_NE(MessageOf<ConfigError>([&] {
              Dataset::Open(fs, scratch / "causal");
            }).find("is a causal file"),
            std::string::npos);
  EXPECT_NE(
      MessageOf<ConfigError>([&] { OpenPacked(scratch / "classes", 8); }).find("classification"),
      std::string::npos);
}

}  // namespace
}  // namespace ullage::data
