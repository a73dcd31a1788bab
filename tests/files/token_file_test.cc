#include "files/token_file.h"

#include <map>
#include <vector>

#include "files/safetensors_writer.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::Scratch;

// A good token file; each test spoils one thing.
struct Sample {
  std::vector<std::int64_t> offsets = {0, 2, 3, 6};
  std::vector<std::int64_t> labels = {1, 0, -100};
  std::vector<std::int32_t> ids = {5, 6, 7, 8, 9, 10};
  std::map<std::string, std::string> metadata = {
      {"format", "ullage-tokens"},       {"version", "1"},      {"tokenizer", "tiny"},
      {"tokenizer_sha256", "abc"},       {"pad_token_id", "3"}, {"num_labels", "2"},
      {"label_names", R"(["no","yes"])"}};

  TokenFile Open() const {
    Scratch scratch;
    PosixFileSystem fs;
    const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
    SafetensorsWriter writer(fs, scratch / "t",
                             {{"offsets", ElementType::kI64, {size(offsets)}},
                              {"labels", ElementType::kI64, {size(labels)}},
                              {"input_ids", ElementType::kI32, {size(ids)}}},
                             metadata);
    writer.Append(offsets.data(), 8 * size(offsets));
    writer.Append(labels.data(), 8 * size(labels));
    writer.Append(ids.data(), 4 * size(ids));
    writer.Finish();
    return TokenFile::Open(fs, scratch / "t");
  }
  std::string Refusal() const {
    return MessageOf<IoError>([&] { Open(); });
  }
};

TEST(TokenFile, GivesRecordsLabelsAndTheTokenizer) {
  const TokenFile file = Sample().Open();
  EXPECT_EQ(file.records(), 3);
  EXPECT_EQ(file.tokens(), 6);
  EXPECT_EQ(file.Length(0), 2);
  EXPECT_EQ(file.Length(2), 3);
  EXPECT_EQ(file.Label(0), 1);
  EXPECT_EQ(file.Label(2), kIgnoredLabel);
  EXPECT_EQ(file.info().tokenizer, "tiny");
  EXPECT_EQ(file.info().tokenizer_sha256, "abc");
  EXPECT_EQ(file.info().pad_token_id, 3);
  EXPECT_EQ(file.info().num_labels, 2);
  EXPECT_EQ(file.info().label_names, (std::vector<std::string>{"no", "yes"}));
  std::int32_t ids[2] = {};
  file.ReadTokens(file.Begin(2) + 1, 2, ids);
  EXPECT_EQ(ids[0], 9);
  EXPECT_EQ(ids[1], 10);
}

TEST(TokenFile, AFileWithoutRecordsIsReadable) {
  Sample sample;
  sample.offsets = {0};
  sample.labels.clear();
  sample.ids.clear();
  EXPECT_EQ(sample.Open().records(), 0);
}

TEST(TokenFile, NamesTheRecordThatIsWrong) {
  Sample backwards;
  backwards.offsets = {0, 3, 2, 6};
  EXPECT_NE(backwards.Refusal().find("record 1 runs from token 3 to 2"), std::string::npos);
  Sample empty;
  empty.offsets = {0, 2, 2, 6};
  EXPECT_NE(empty.Refusal().find("record 1 runs from token 2 to 2"), std::string::npos);
  Sample beyond;
  beyond.offsets = {0, 2, 7, 9};
  EXPECT_NE(beyond.Refusal().find("record 1 runs from token 2 to 7"), std::string::npos);
  Sample start;
  start.offsets = {1, 2, 3, 6};
  EXPECT_NE(start.Refusal().find("record 0 begins at token 1"), std::string::npos);
  Sample short_of;
  short_of.offsets = {0, 2, 3, 5};
  EXPECT_NE(short_of.Refusal().find("ends at token 5 of 6"), std::string::npos);
  Sample label;
  label.labels = {1, 2, 0};
  EXPECT_NE(label.Refusal().find("record 1 has label 2, expected 0 to 1 or -100"),
            std::string::npos);
  Sample negative;
  negative.labels = {1, 1, -1};
  EXPECT_NE(negative.Refusal().find("record 2 has label -1"), std::string::npos);
  Sample count;
  count.labels = {1, 1};
  EXPECT_NE(count.Refusal().find("4 offsets for 2 labels"), std::string::npos);
}

TEST(TokenFile, NamesTheMetadataThatIsWrong) {
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"format", "pt"},
                                          {"pad_token_id", "-1"},
                                          {"num_labels", "two"},
                                          {"num_labels ", ""},
                                          {"label_names", R"(["one"])"}}) {
    Sample sample;
    sample.metadata[key] = value;
    if (key.back() == ' ') sample.metadata.erase("num_labels");
    EXPECT_NE(sample.Refusal().find("hint: make the file again"), std::string::npos) << key;
  }
  Sample numbers;
  numbers.metadata["num_labels"] = "99999999999999999999";
  EXPECT_NE(numbers.Refusal().find("num_labels is \"99999999999999999999\""), std::string::npos);
  Sample names;
  names.metadata["label_names"] = "[1,2]";
  EXPECT_NE(names.Refusal().find("list of 2 strings"), std::string::npos);
  Sample version;
  version.metadata["version"] = "2";
  EXPECT_THROW(version.Open(), UnsupportedError);
}

TEST(TokenFile, RefusesOtherTypesAndMissingTensors) {
  Scratch scratch;
  PosixFileSystem fs;
  SafetensorsWriter writer(fs, scratch / "t", {{"input_ids", ElementType::kI64, {1}}},
                           Sample().metadata);
  const std::int64_t id = 1;
  writer.Append(&id, 8);
  writer.Finish();
  EXPECT_NE(MessageOf<IoError>([&] {
              TokenFile::Open(fs, scratch / "t");
            }).find("\"input_ids\" is I64 [1], expected I32 with one dimension"),
            std::string::npos);
}

// A good file of documents; each test spoils one thing.
struct DocumentSample {
  std::string task = "instruct";
  std::vector<std::int64_t> offsets = {0, 2, 3, 6};
  std::vector<std::int32_t> ids = {5, 6, 7, 8, 9, 10};
  std::vector<std::int32_t> labels = {-100, 6, 7, -100, -100, 10};  // empty: no such tensor

  TokenFile Open() const {
    Scratch scratch;
    PosixFileSystem fs;
    std::vector<TensorDeclaration> tensors = {{"offsets", ElementType::kI64, {std::ssize(offsets)}},
                                              {"input_ids", ElementType::kI32, {std::ssize(ids)}}};
    if (!labels.empty()) tensors.push_back({"labels", ElementType::kI32, {std::ssize(labels)}});
    std::map<std::string, std::string> metadata = {{"format", "ullage-tokens"},
                                                   {"version", "1"},
                                                   {"tokenizer", "tiny"},
                                                   {"tokenizer_sha256", "abc"},
                                                   {"pad_token_id", "3"}};
    if (!task.empty()) metadata["task"] = task;
    SafetensorsWriter writer(fs, scratch / "t", tensors, metadata);
    writer.Append(offsets.data(), 8 * std::ssize(offsets));
    writer.Append(ids.data(), 4 * std::ssize(ids));
    writer.Append(labels.data(), 4 * std::ssize(labels));
    writer.Finish();
    return TokenFile::Open(fs, scratch / "t");
  }
  std::string Refusal() const {
    return MessageOf<IoError>([&] { Open(); });
  }
};

TEST(TokenFile, TheTaskTellsTheThreeKindsApart) {
  EXPECT_EQ(Sample().Open().info().task, TokenTask::kClassification);
  DocumentSample causal{.task = "causal", .labels = {}};
  EXPECT_EQ(causal.Open().info().task, TokenTask::kCausal);
  EXPECT_EQ(causal.Open().records(), 3);
  EXPECT_EQ(causal.Open().info().num_labels, 0);
  EXPECT_EQ(DocumentSample().Open().info().task, TokenTask::kInstruct);
  EXPECT_NE(DocumentSample{.task = "poetry"}.Refusal().find("metadata task is \"poetry\""),
            std::string::npos);
}

TEST(TokenFile, InstructionFilesHaveALabelForEachToken) {
  const TokenFile file = DocumentSample().Open();
  std::int32_t labels[3] = {};
  file.ReadTokenLabels(1, 3, labels);
  EXPECT_EQ(labels[0], 6);
  EXPECT_EQ(labels[1], 7);
  EXPECT_EQ(labels[2], kIgnoredLabel);
  EXPECT_EQ(file.RecordOfToken(1), 0);
  EXPECT_EQ(file.RecordOfToken(2), 1);
  EXPECT_EQ(file.RecordOfToken(5), 2);
}

TEST(TokenFile, DocumentsThatDoNotFitTheirTaskAreRefused) {
  EXPECT_NE((DocumentSample{.labels = {1, 2}}.Refusal().find("has 2 labels for 6 tokens")),
            std::string::npos);
  EXPECT_NE((DocumentSample{.labels = {}}.Refusal().find("has no tensor \"labels\"")),
            std::string::npos);
  EXPECT_NE(DocumentSample{.task = "causal"}.Refusal().find("the tokens are the labels"),
            std::string::npos);
  EXPECT_NE(DocumentSample{.task = ""}.Refusal().find("has no \"num_labels\""), std::string::npos);
  EXPECT_NE(
      (DocumentSample{.offsets = {0, 3, 2, 6}}.Refusal().find("record 1 runs from token 3 to 2")),
      std::string::npos);
  EXPECT_NE((DocumentSample{.offsets = {}}.Refusal().find("has no offsets")), std::string::npos);
}

}  // namespace
}  // namespace ullage::files
