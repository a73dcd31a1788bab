// Decoders small enough for tests.
#pragma once

#include <torch/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model.h"
#include "tiny_model.h"

namespace ullage::models {

// Grouped-query attention with an odd number of layers; `changes` may name another model_type.
inline nlohmann::json TinyLlamaConfig(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {
      {"model_type", "llama"},        {"vocab_size", 53},         {"hidden_size", 24},
      {"num_hidden_layers", 3},       {"num_attention_heads", 4}, {"num_key_value_heads", 2},
      {"intermediate_size", 40},      {"initializer_range", 0.2}, {"head_dim", 6},
      {"max_position_embeddings", 32}};
  config.update(changes);
  return config;
}

inline std::unique_ptr<Model> TinyLlama(const nlohmann::json& changes = nlohmann::json::object()) {
  auto model = MakeFromText(TinyLlamaConfig(changes).dump());
  Initialise(*model, 3);
  return model;
}

// Token ids without a pattern, and as labels the ids themselves.
inline Batch TinyBatch(std::int64_t records, std::int64_t tokens) {
  Batch batch;
  batch.input_ids =
      (at::arange(records * tokens, at::kLong).square() * 7 % 50 + 1).view({records, tokens});
  batch.labels = batch.input_ids.clone();
  return batch;
}

}  // namespace ullage::models
