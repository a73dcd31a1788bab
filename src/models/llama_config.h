// What a model of the Llama family needs from a Hugging Face config.json.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/rotary.h"

namespace ullage::models {

struct LlamaConfig {
  std::string model_type;  // "llama", "mistral", "qwen2", "qwen3"
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // divides num_attention_heads
  std::int64_t head_dim = 0;             // even
  std::int64_t max_position_embeddings = 0;
  std::int64_t pad_token_id = -1;  // -1: none. Its embedding gets no gradient as an input.
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double attention_dropout = 0;
  bool tie_word_embeddings = false;
  bool query_key_value_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool query_key_norm = false;               // RMSNorm of each head's queries and keys
  std::vector<std::int64_t> sliding_window;  // of each layer: keys that a query sees; 0: all
  RotaryConfig rotary;
};

// Whether `model_type` is one of the family.
bool IsLlamaType(const std::string& model_type);
// "LlamaForCausalLM", ...
std::string CausalArchitecture(const std::string& model_type);

// Reads the fields from `object`, a config.json whose model_type is one of the family, with the
// defaults that transformers has for that type. Throws ConfigError naming key and value for what
// cannot be, and UnsupportedError for what other programs may offer: other activations, other
// scalings of the rotary frequencies, quantised weights. `source` names the file in messages.
LlamaConfig ReadLlamaConfig(const nlohmann::json& object, const std::string& source);

}  // namespace ullage::models
