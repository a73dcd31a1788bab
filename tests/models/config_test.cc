// config.json: what is read, what is refused and in which words.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "models/bert_config.h"
#include "tiny_model.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using nlohmann::json;

BertConfig Read(const json& changes, int num_labels_override = 0) {
  return ReadBertConfig(TinyConfig(changes), "config.json", num_labels_override);
}

template <class Error>
std::string Refusal(const json& changes) {
  try {
    Read(changes);
  } catch (const Error& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST(BertConfig, DefaultsAreThoseOfBertBase) {
  const BertConfig config = ReadBertConfig({{"model_type", "bert"}}, "config.json", 0);
  EXPECT_EQ(config.vocab_size, 30522);
  EXPECT_EQ(config.hidden_size, 768);
  EXPECT_EQ(config.num_hidden_layers, 12);
  EXPECT_EQ(config.num_attention_heads, 12);
  EXPECT_EQ(config.intermediate_size, 3072);
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.hidden_dropout_prob, 0.1);
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_EQ(config.labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
}

TEST(BertConfig, ClassifierDropoutFallsBackToHiddenDropout) {
  EXPECT_EQ(Read({{"hidden_dropout_prob", 0.3}}).classifier_dropout, 0.3);
  EXPECT_EQ(
      Read({{"hidden_dropout_prob", 0.3}, {"classifier_dropout", nullptr}}).classifier_dropout,
      0.3);
  EXPECT_EQ(Read({{"hidden_dropout_prob", 0.3}, {"classifier_dropout", 0}}).classifier_dropout, 0);
}

TEST(BertConfig, NoPaddingTokenIsNotTokenZero) {
  EXPECT_EQ(Read(json::object()).pad_token_id, 0);
  EXPECT_EQ(Read({{"pad_token_id", nullptr}}).pad_token_id, -1);
}

TEST(BertConfig, LabelsComeFromTheFileOrTheOverride) {
  const json names = {{"id2label", {{"0", "bad"}, {"1", "good"}, {"2", "fine"}}}};
  EXPECT_EQ(Read(names).labels, (std::vector<std::string>{"bad", "good", "fine"}));
  EXPECT_EQ(Read(names, 3).labels, (std::vector<std::string>{"bad", "good", "fine"}));
  EXPECT_EQ(Read(names, 2).labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(Read({{"num_labels", 4}}).labels.size(), 4U);
}

TEST(BertConfig, NamesTheKeyAndTheValueOfWhatCannotBe) {
  const double infinity = std::numeric_limits<double>::max();
  const json cases[] = {
      {{"hidden_size", 0}},
      {{"hidden_size", -16}},
      {{"hidden_size", "16"}},
      {{"hidden_size", 16.5}},
      {{"hidden_size", infinity}},
      {{"hidden_size", 18446744073709551615ULL}},
      {{"vocab_size", 3000000000}},
      {{"num_hidden_layers", 1000000000}},
      {{"num_attention_heads", 3}},
      {{"intermediate_size", true}},
      {{"max_position_embeddings", json::array({1})}},
      {{"type_vocab_size", 0}},
      {{"pad_token_id", 50}},
      {{"pad_token_id", -1}},
      {{"hidden_dropout_prob", 1.0}},
      {{"attention_probs_dropout_prob", -0.1}},
      {{"classifier_dropout", "none"}},
      {{"initializer_range", -1}},
      {{"layer_norm_eps", 1e300}},
      {{"hidden_act", 7}},
      {{"is_decoder", "no"}},
      {{"num_labels", 10000000}},
      {{"id2label", json::array({"a", "b"})}},
      {{"id2label", {{"0", "a"}, {"2", "b"}}}},
      {{"id2label", {{"0", "a"}, {"1", 5}}}},
  };
  for (const json& change : cases) {
    const auto item = change.items().begin();
    const std::string expected = "config.json: " + item.key() + ": " + item.value().dump();
    const std::string refusal = Refusal<ConfigError>(change);
    EXPECT_EQ(refusal.substr(0, expected.size()), expected) << refusal;
    EXPECT_NE(refusal.find("\nhint: " + item.key() + " is "), std::string::npos) << refusal;
  }
}

TEST(BertConfig, RefusesTensorsOfMoreThanTwoToTheForty) {
  EXPECT_NE(Refusal<ConfigError>({{"hidden_size", 1 << 20}, {"vocab_size", 1 << 24}})
                .find("vocab_size: 16777216"),
            std::string::npos);
}

TEST(BertConfig, ContradictingLabelCountsAreRefused) {
  EXPECT_NE(Refusal<ConfigError>({{"num_labels", 3}, {"id2label", {{"0", "a"}, {"1", "b"}}}})
                .find("num_labels: 3"),
            std::string::npos);
}

TEST(BertConfig, SaysWhatIsNotOffered) {
  const json cases[] = {
      {{"is_decoder", true}},
      {{"add_cross_attention", true}},
      {{"position_embedding_type", "relative_key"}},
      {{"hidden_act", "silu"}},
      {{"embedding_size", 8}},
      {{"quantization_config", {{"bits", 4}}}},
      {{"pruned_heads", {{"0", json::array({1})}}}},
      {{"problem_type", "regression"}},
      {{"num_labels", 1}},
  };
  for (const json& change : cases) {
    const std::string refusal = Refusal<UnsupportedError>(change);
    EXPECT_NE(refusal.find(change.items().begin().key()), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("offered"), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace ullage::models
