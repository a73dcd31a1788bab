// A BERT small enough for tests, from a config.json written to a temporary file.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model.h"

namespace ullage::models {

inline nlohmann::json TinyConfig(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", "bert"},     {"vocab_size", 50},
                           {"hidden_size", 16},        {"num_hidden_layers", 2},
                           {"num_attention_heads", 2}, {"intermediate_size", 24},
                           {"initializer_range", 0.5}, {"max_position_embeddings", 12},
                           {"type_vocab_size", 2}};
  config.update(changes);
  return config;
}

// MakeModel on a file holding `text`.
inline std::unique_ptr<Model> MakeFromText(const std::string& text, int num_labels_override = 0,
                                           at::Device device = at::kCPU) {
  std::string path =
      (std::filesystem::temp_directory_path() / ("ullage-config-" + std::string(6, 'X'))).string();
  const int descriptor = mkstemp(path.data());
  close(descriptor);
  std::ofstream(path) << text;
  struct Remove {
    const std::string& path;
    ~Remove() { std::filesystem::remove(path); }
  } remove{path};
  return MakeModel(path, num_labels_override, device);
}

inline void Initialise(Model& model, std::uint64_t seed) {
  for (auto& parameter : model.module().named_parameters()) {
    at::Tensor value = parameter.value().detach();
    model.InitialValue(parameter.key(), seed, value);
  }
}

inline std::unique_ptr<Model> TinyModel(const nlohmann::json& changes = nlohmann::json::object()) {
  auto model = MakeFromText(TinyConfig(changes).dump());
  Initialise(*model, 3);
  return model;
}

}  // namespace ullage::models
