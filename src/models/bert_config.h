// What a BERT needs from a Hugging Face config.json.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace ullage::models {

enum class Activation : std::uint8_t { kGelu, kGeluTanh, kRelu };

// Defaults are those of transformers' BertConfig.
struct BertConfig {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  std::int64_t pad_token_id = 0;  // -1: none. Its embedding gets no gradient.
  Activation hidden_act = Activation::kGelu;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double classifier_dropout = 0.1;  // absent in the file: hidden_dropout_prob
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::vector<std::string> labels;  // the name of each class; at least two
};

// Reads the fields from `object`, a config.json whose model_type is "bert". `num_labels_override`
// above 0 replaces the file's classes by LABEL_0, LABEL_1, ... unless it has just as many.
// Throws ConfigError naming key and value for what cannot be, and UnsupportedError for what other
// programs may offer: decoders, cross-attention, relative positions, regression, quantised weights.
// `source` names the file in messages.
BertConfig ReadBertConfig(const nlohmann::json& object, const std::string& source,
                          int num_labels_override);

}  // namespace ullage::models
