// config.json of the Llama family: what is read, what is refused and in which words.
#include "models/llama_config.h"

#include <gtest/gtest.h>

#include <string>

#include "tiny_llama.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using nlohmann::json;

LlamaConfig Read(const json& changes) {
  return ReadLlamaConfig(TinyLlamaConfig(changes), "config.json");
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

TEST(LlamaConfig, DefaultsAreThoseOfTransformersForEachType) {
  const auto defaults = [](const char* type) {
    return ReadLlamaConfig({{"model_type", type}}, "config.json");
  };
  const LlamaConfig llama = defaults("llama"), mistral = defaults("mistral"),
                    qwen2 = defaults("qwen2"), qwen3 = defaults("qwen3");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.num_key_value_heads, 32);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(llama.rotary.theta, 10000);
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.sliding_window, std::vector<std::int64_t>(32, 4096));
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_TRUE(qwen2.query_key_value_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  EXPECT_EQ(qwen2.sliding_window, std::vector<std::int64_t>(32, 0));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.query_key_norm);
  EXPECT_FALSE(qwen3.query_key_value_bias);
}

TEST(LlamaConfig, HeadsAreGivenOrDerived) {
  EXPECT_EQ(Read({{"head_dim", nullptr}, {"hidden_size", 32}}).head_dim, 8);
  EXPECT_EQ(Read({{"head_dim", 10}}).head_dim, 10);
  EXPECT_EQ(Read({{"num_key_value_heads", nullptr}}).num_key_value_heads, 4);
  EXPECT_EQ(Read({{"model_type", "mistral"}, {"num_key_value_heads", nullptr}}).num_key_value_heads,
            4);
}

TEST(LlamaConfig, WindowsFollowTheTypeAndTheLayer) {
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(Read({{"sliding_window", 5}}).sliding_window, (Windows{0, 0, 0}));  // llama has none
  const json mistral = {{"model_type", "mistral"}, {"sliding_window", nullptr}};
  EXPECT_EQ(Read(mistral).sliding_window, (Windows{0, 0, 0}));
  json qwen = {{"model_type", "qwen2"}, {"sliding_window", 5}, {"max_window_layers", 1}};
  EXPECT_EQ(Read(qwen).sliding_window, (Windows{0, 0, 0}));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(Read(qwen).sliding_window, (Windows{0, 5, 5}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(Read(qwen).sliding_window, (Windows{5, 0, 5}));
}

TEST(LlamaConfig, RotaryParametersStandInEitherPlace) {
  const json llama3 = {{"rope_type", "llama3"}, {"factor", 8},
                       {"low_freq_factor", 1},  {"high_freq_factor", 4},
                       {"rope_theta", 5000.0},  {"original_max_position_embeddings", 16}};
  const RotaryConfig given = Read({{"rope_parameters", llama3}}).rotary;
  EXPECT_EQ(given.scaling, RotaryConfig::Scaling::kLlama3);
  EXPECT_EQ(given.theta, 5000);
  EXPECT_EQ(given.factor, 8);
  EXPECT_EQ(given.original_positions, 16);
  const RotaryConfig older =
      Read({{"rope_theta", 300}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}).rotary;
  EXPECT_EQ(older.scaling, RotaryConfig::Scaling::kLinear);
  EXPECT_EQ(older.theta, 300);
  EXPECT_EQ(older.factor, 2);
  json without = llama3;
  without.erase("original_max_position_embeddings");
  EXPECT_EQ(Read({{"rope_scaling", without}}).rotary.original_positions, 32);
}

TEST(LlamaConfig, NamesTheKeyAndTheValueOfWhatCannotBe) {
  const json cases[] = {
      {{"hidden_size", 0}},
      {{"vocab_size", 3000000000}},
      {{"num_hidden_layers", 1000000000}},
      {{"num_attention_heads", 5}, {"head_dim", nullptr}},
      {{"num_key_value_heads", 3}},
      {{"num_key_value_heads", 0}},
      {{"head_dim", 5}},
      {{"head_dim", 0}},
      {{"intermediate_size", "40"}},
      {{"max_position_embeddings", -1}},
      {{"pad_token_id", 53}},
      {{"pad_token_id", -54}},
      {{"rms_norm_eps", -1}},
      {{"attention_dropout", 1}},
      {{"tie_word_embeddings", 1}},
      {{"attention_bias", "yes"}},
      {{"rope_theta", 0}},
      {{"rope_parameters", 7}},
  };
  for (const json& change : cases) {
    // The first key by name that the change gives and that is not null.
    auto item = change.items().begin();
    if (item.value().is_null()) ++item;
    const std::string refusal = Refusal<ConfigError>(change);
    const std::string expected = "config.json: " + item.key() + ": " + item.value().dump();
    EXPECT_EQ(refusal.substr(0, expected.size()), expected) << refusal;
    EXPECT_NE(refusal.find("\nhint: " + item.key() + " is "), std::string::npos) << refusal;
  }
}

TEST(LlamaConfig, NamesKeysInsideOfTheRotaryParameters) {
  for (const json& change :
       {json{{"rope_type", "linear"}}, json{{"rope_type", "linear"}, {"factor", 0}},
        json{{"rope_type", "llama3"}, {"factor", 8}}}) {
    const std::string refusal = Refusal<ConfigError>({{"rope_parameters", change}});
    EXPECT_EQ(refusal.rfind("config.json: rope_parameters: ", 0), 0u) << refusal;
  }
}

TEST(LlamaConfig, LayerTypesMustFitTheLayersAndTheWindow) {
  const json two = {"full_attention", "full_attention"};
  const json three = {"full_attention", "full_attention", "sliding_attention"};
  const json other = {"full_attention", "full_attention", "chunked_attention"};
  for (const json& types : {two, three, other}) {
    const std::string refusal =
        Refusal<ConfigError>({{"model_type", "qwen2"}, {"layer_types", types}});
    EXPECT_NE(refusal.find("layer_types"), std::string::npos) << refusal;
  }
}

TEST(LlamaConfig, SaysWhatIsNotOffered) {
  const auto rope = [](const char* type) {
    return json{{"rope_parameters", {{"rope_type", type}, {"factor", 2}}}};
  };
  const json cases[] = {
      {{"hidden_act", "gelu"}},
      {{"quantization_config", {{"bits", 4}}}},
      {{"partial_rotary_factor", 0.5}},
      {{"model_type", "gemma"}},
      {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
      rope("dynamic"),
      rope("yarn"),
      rope("longrope"),
  };
  for (const json& change : cases) {
    const std::string refusal = Refusal<UnsupportedError>(change);
    EXPECT_NE(refusal.find("offered"), std::string::npos) << refusal;
  }
  EXPECT_NE(Refusal<UnsupportedError>(rope("yarn")).find("rope_type: \"yarn\" is not offered"),
            std::string::npos);
}

TEST(LlamaConfig, RefusesTensorsOfMoreThanTwoToTheForty) {
  EXPECT_NE(Refusal<ConfigError>({{"hidden_size", 1 << 20}, {"vocab_size", 1 << 24}})
                .find("vocab_size: 16777216"),
            std::string::npos);
}

}  // namespace
}  // namespace ullage::models
