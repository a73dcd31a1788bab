// What ullage-prepare writes, read by the program that trains on it.
#include <cstdlib>

#include "../files/scratch.h"
#include "data/dataset.h"

namespace ullage::data {
namespace {

using testsupport::Scratch;

constexpr const char* kTokenizer = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
  "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                       "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
  "decoder": null,
  "model": {"type": "WordLevel", "unk_token": "[UNK]",
    "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5, "very": 6}}})";

TEST(PreparedFile, IsReadWithItsTokensLabelsAndTokenizer) {
  Scratch scratch;
  scratch.Write("tokenizer.json", kTokenizer);
  scratch.Write("data.tsv", "label\ttext\npos\tGood\nneg\tbad very bad\npos\tvery odd\n");
  const std::string command = "cd '" + scratch.path() +
                              "' && '" ULLAGE_TEST_PYTHON "' '" ULLAGE_PREPARE
                              "' data.tsv --tokenizer tokenizer.json --text text --label label "
                              "--out out.safetensors > log 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << scratch.Read("log");
  files::PosixFileSystem fs;
  const Dataset data = Dataset::Open(fs, scratch / "out.safetensors");
  data.CheckFor({.vocab_size = 7, .max_positions = 5, .num_labels = 2});
  ASSERT_EQ(data.records(), 3);
  EXPECT_EQ(data.info().label_names, (std::vector<std::string>{"neg", "pos"}));
  EXPECT_EQ(data.info().pad_token_id, 0);
  EXPECT_EQ(data.info().tokenizer_sha256.size(), 64u);
  EXPECT_EQ(data.Label(0), 1);
  EXPECT_EQ(data.Label(1), 0);
  std::vector<std::int32_t> ids(5);
  ASSERT_EQ(data.Length(1), 5);
  data.ReadTokens(1, ids.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{2, 5, 6, 5, 3}));
}

TEST(PreparedFile, InstructionsAreReadWithTheirPromptsMasked) {
  Scratch scratch;
  scratch.Write("tokenizer.json", kTokenizer);
  scratch.Write("data.jsonl", R"({"prompt": "good", "response": "very bad"})"
                              "\n");
  const std::string command = "cd '" + scratch.path() +
                              "' && '" ULLAGE_TEST_PYTHON "' '" ULLAGE_PREPARE
                              "' data.jsonl --task instruct --tokenizer tokenizer.json --eos-token "
                              "'[SEP]' --template '{prompt} {response}' --out out.safetensors "
                              "> log 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << scratch.Read("log");
  files::PosixFileSystem fs;
  const auto data = MakeTrainingData(files::TokenFile::Open(fs, scratch / "out.safetensors"),
                                     {.sequence_length = 5});
  data->CheckFor({.vocab_size = 7, .max_positions = 5});
  EXPECT_EQ(data->task(), files::TokenTask::kInstruct);
  const Batch batch = data->MakeBatch(std::vector<std::int64_t>{0}, {});
  const auto values = [](const at::Tensor& tensor) {
    const auto* first = tensor.const_data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(first, first + tensor.numel());
  };
  EXPECT_EQ(values(batch.input_ids), (std::vector<std::int64_t>{2, 4, 6, 5, 3}));
  EXPECT_EQ(values(batch.labels), (std::vector<std::int64_t>{-100, -100, 6, 5, 3}));
}

}  // namespace
}  // namespace ullage::data
