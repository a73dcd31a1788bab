// The Llama family behind the Model interface: limits, names in files, initial values, export.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <regex>
#include <string>
#include <vector>

#include "tiny_llama.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using at::Tensor;
using Names = std::vector<std::string>;

TEST(LlamaModel, ReportsItsLimits) {
  const auto model = MakeFromText(TinyLlamaConfig({{"model_type", "qwen3"}}).dump(), 0, at::kMeta);
  EXPECT_EQ(model->task(), Task::kCausalLanguage);
  EXPECT_EQ(model->family(), "qwen3");
  EXPECT_EQ(model->vocab_size(), 53);
  EXPECT_EQ(model->max_positions(), 32);
  EXPECT_EQ(model->num_labels(), 0);
  EXPECT_THROW(MakeFromText(TinyLlamaConfig().dump(), 2, at::kMeta), ConfigError);
}

TEST(LlamaModel, FindsParametersUnderTheirOtherNames) {
  const auto untied = MakeFromText(TinyLlamaConfig().dump(), 0, at::kMeta);
  EXPECT_EQ(untied->FileNames("model.norm.weight"), (Names{"model.norm.weight", "norm.weight"}));
  EXPECT_EQ(untied->FileNames("lm_head.weight"), Names{"lm_head.weight"});
  const auto tied =
      MakeFromText(TinyLlamaConfig({{"tie_word_embeddings", true}}).dump(), 0, at::kMeta);
  EXPECT_EQ(tied->FileNames("lm_head.weight"),
            (Names{"lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight"}));
  EXPECT_EQ(tied->FileNames("model.embed_tokens.weight"),
            (Names{"model.embed_tokens.weight", "embed_tokens.weight", "lm_head.weight"}));
}

TEST(LlamaModel, DecaysMatricesOnly) {
  const auto model = MakeFromText(
      TinyLlamaConfig({{"model_type", "qwen3"}, {"attention_bias", true}}).dump(), 0, at::kMeta);
  for (const auto& parameter : model->module().named_parameters()) {
    bool is_free = false;
    for (const std::string& pattern : model->no_decay_patterns()) {
      is_free = is_free || std::regex_search(parameter.key(), std::regex(pattern));
    }
    EXPECT_EQ(is_free, parameter.value().dim() == 1) << parameter.key();
  }
}

TEST(LlamaModel, InitialValuesAreNormalWithUnitNormsAndZeroBiases) {
  const auto model = TinyLlama({{"vocab_size", 4000},
                                {"pad_token_id", 7},
                                {"attention_bias", true},
                                {"tie_word_embeddings", true}});
  const auto parameters = model->module().named_parameters();
  const Tensor words = parameters["model.embed_tokens.weight"];
  EXPECT_NEAR(words.mean().item<double>(), 0.0, 0.01);
  EXPECT_NEAR(words.std().item<double>(), 0.2, 0.01);   // initializer_range
  EXPECT_EQ(words[7].abs().sum().item<float>(), 0.0F);  // the padding token
  EXPECT_TRUE((parameters["model.norm.weight"] == 1).all().item<bool>());
  EXPECT_TRUE((parameters["model.layers.2.input_layernorm.weight"] == 1).all().item<bool>());
  EXPECT_TRUE((parameters["model.layers.0.self_attn.q_proj.bias"] == 0).all().item<bool>());
  Tensor head = at::empty({4000, 24}), embedding = at::empty({4000, 24});
  model->InitialValue("lm_head.weight", 5, head);
  model->InitialValue("model.embed_tokens.weight", 5, embedding);
  EXPECT_TRUE(at::equal(head, embedding));  // one tensor under two names
}

TEST(LlamaModel, ExportsItsConfig) {
  nlohmann::json config = TinyLlamaConfig({{"model_type", "mistral"},
                                           {"architectures", {"MistralModel"}},
                                           {"torch_dtype", "float16"},
                                           {"_name_or_path", "somewhere"},
                                           {"rope_theta", 1e6}});
  const auto model = MakeFromText(config.dump(), 0, at::kMeta);
  const auto exported = nlohmann::json::parse(model->ExportConfig("bfloat16"));
  config.erase("torch_dtype");
  config.erase("_name_or_path");
  config.update({{"architectures", {"MistralForCausalLM"}}, {"dtype", "bfloat16"}});
  EXPECT_EQ(exported, config);
}

}  // namespace
}  // namespace ullage::models
