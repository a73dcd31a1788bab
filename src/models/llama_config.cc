#include "models/llama_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "models/json_fields.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxTensorElements = std::int64_t{1} << 40;  // keeps bytes from overflowing

// What transformers takes where a config.json says nothing.
struct Family {
  const char* model_type;
  const char* architecture;
  std::int64_t vocab_size, intermediate_size, max_position_embeddings;
  std::int64_t num_key_value_heads;  // 0: as many as there are heads
  std::int64_t head_dim;             // 0: hidden_size / num_attention_heads
  bool can_have_bias;                // attention_bias is read
};
constexpr std::array<Family, 4> kFamilies = {{
    {"llama", "LlamaForCausalLM", 32000, 11008, 2048, 0, 0, true},
    {"mistral", "MistralForCausalLM", 32000, 14336, 131072, 8, 0, false},
    {"qwen2", "Qwen2ForCausalLM", 151936, 22016, 32768, 32, 0, false},
    {"qwen3", "Qwen3ForCausalLM", 151936, 22016, 32768, 32, 128, true},
}};

const Family* FindFamily(const std::string& model_type) {
  const auto found = std::ranges::find_if(
      kFamilies, [&](const Family& family) { return family.model_type == model_type; });
  return found == kFamilies.end() ? nullptr : &*found;
}

void RefuseVariants(const JsonFields& fields) {
  if (fields.Find("quantization_config") != nullptr) {
    throw UnsupportedError(fields.Describe("quantization_config") + " is not offered",
                           "bring the weights in fp32, bf16 or fp16");
  }
  const std::string activation = fields.String("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    throw UnsupportedError(fields.Describe("hidden_act") + " is not offered", "silu is offered");
  }
}

void ReadSizes(const JsonFields& fields, const Family& family, LlamaConfig& config) {
  const auto dimension = [&](const char* key, std::int64_t fallback, std::int64_t highest) {
    return fields.Integer(key, fallback, 1, highest);
  };
  config.vocab_size =
      dimension("vocab_size", family.vocab_size, std::numeric_limits<std::int32_t>::max());
  config.hidden_size = dimension("hidden_size", 4096, kMaxDimension);
  config.intermediate_size =
      dimension("intermediate_size", family.intermediate_size, kMaxDimension);
  config.num_hidden_layers = dimension("num_hidden_layers", 32, kMaxLayers);
  config.num_attention_heads = dimension("num_attention_heads", 32, kMaxDimension);
  config.max_position_embeddings =
      dimension("max_position_embeddings", family.max_position_embeddings, kMaxDimension);
  if (config.hidden_size % config.num_attention_heads != 0 &&
      (fields.Find("head_dim") == nullptr && family.head_dim == 0)) {
    fields.Fail(
        "num_attention_heads",
        fmt::format("a divisor of hidden_size ({}) unless head_dim is given", config.hidden_size));
  }
  const std::int64_t head_dim =
      family.head_dim > 0 ? family.head_dim : config.hidden_size / config.num_attention_heads;
  config.head_dim = fields.Integer("head_dim", head_dim, 0, kMaxDimension);
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    fields.Fail("head_dim", fmt::format("an even number above 0 (it is {}, unless given, from "
                                        "hidden_size and num_attention_heads)",
                                        head_dim));
  }
}

void ReadHeads(const JsonFields& fields, const nlohmann::json& object, const Family& family,
               LlamaConfig& config) {
  const std::int64_t heads = config.num_attention_heads;
  const bool is_null = object.contains("num_key_value_heads");  // only then the fallback counts
  const std::int64_t fallback =
      is_null || family.num_key_value_heads == 0 ? heads : family.num_key_value_heads;
  config.num_key_value_heads = fields.Integer("num_key_value_heads", fallback, 1, kMaxDimension);
  if (heads % config.num_key_value_heads != 0) {
    fields.Fail(
        "num_key_value_heads",
        fmt::format("a divisor of num_attention_heads ({}), by default {}", heads, fallback));
  }
  const std::pair<const char*, std::int64_t> rows[] = {
      {"vocab_size", config.vocab_size},
      {"intermediate_size", config.intermediate_size},
      {"num_attention_heads", heads * std::min(config.head_dim, kMaxDimension)},
      {"hidden_size", config.hidden_size}};
  for (const auto& [key, value] : rows) {
    if (value > kMaxTensorElements / config.hidden_size) {
      fields.Fail(key, fmt::format("so small that its weights, with hidden_size {}, have at most "
                                   "2^40 elements",
                                   config.hidden_size));
    }
  }
}

// One entry for each layer.
std::vector<std::int64_t> ReadWindows(const JsonFields& fields, const nlohmann::json& object,
                                      const LlamaConfig& config) {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(config.num_hidden_layers), 0);
  if (config.model_type == "llama") return windows;
  const std::int64_t usual = object.contains("sliding_window") ? 0 : 4096;  // null: none
  const std::int64_t window =
      fields.Integer("sliding_window", usual, 1, std::numeric_limits<std::int32_t>::max());
  if (config.model_type == "mistral") {
    std::ranges::fill(windows, window);
    return windows;
  }
  const bool is_used = fields.Bool("use_sliding_window", false) && window > 0;
  const std::int64_t full_layers =
      fields.Integer("max_window_layers", 28, 0, std::numeric_limits<std::int32_t>::max());
  const nlohmann::json* types = fields.Find("layer_types");
  const std::string allowed =
      fmt::format("one of \"full_attention\" and \"sliding_attention\" for each of the {} layers",
                  config.num_hidden_layers);
  if (types != nullptr && (!types->is_array() || types->size() != windows.size())) {
    fields.Fail("layer_types", allowed);
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    bool slides = is_used && static_cast<std::int64_t>(i) >= full_layers;
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[i];
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention") fields.Fail("layer_types", allowed);
      if (slides && !is_used) {
        fields.Fail("layer_types",
                    "without \"sliding_attention\" unless use_sliding_window is true and "
                    "sliding_window is given");
      }
    }
    windows[i] = slides ? window : 0;
  }
  return windows;
}

// transformers hands the number to torch, where a negative one counts from the end.
std::int64_t ReadPaddingToken(const JsonFields& fields, std::int64_t vocab_size) {
  if (fields.Find("pad_token_id") == nullptr) return -1;
  const std::int64_t token = fields.Integer("pad_token_id", 0, -vocab_size, vocab_size - 1);
  return token < 0 ? token + vocab_size : token;
}

}  // namespace

bool IsLlamaType(const std::string& model_type) {
  return FindFamily(model_type) != nullptr;
}

std::string CausalArchitecture(const std::string& model_type) {
  return FindFamily(model_type)->architecture;
}

LlamaConfig ReadLlamaConfig(const nlohmann::json& object, const std::string& source) {
  const JsonFields fields(object, source);
  LlamaConfig config;
  config.model_type = fields.String("model_type", "");
  const Family* family = FindFamily(config.model_type);
  if (family == nullptr) {
    throw UnsupportedError(fields.Describe("model_type") + " is not of the Llama family",
                           "llama, mistral, qwen2 and qwen3 are offered");
  }
  RefuseVariants(fields);
  ReadSizes(fields, *family, config);
  ReadHeads(fields, object, *family, config);
  config.pad_token_id = ReadPaddingToken(fields, config.vocab_size);
  config.initializer_range = fields.Number("initializer_range", config.initializer_range, 0, 10);
  config.rms_norm_eps = fields.Number("rms_norm_eps", config.rms_norm_eps, 0, 1);
  config.attention_dropout = fields.Number("attention_dropout", 0, 0, 1);
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  const bool has_bias = family->can_have_bias && fields.Bool("attention_bias", false);
  config.query_key_value_bias = has_bias || config.model_type == "qwen2";
  config.attention_output_bias = has_bias;
  config.mlp_bias = config.model_type == "llama" && fields.Bool("mlp_bias", false);
  config.query_key_norm = config.model_type == "qwen3";
  config.sliding_window = ReadWindows(fields, object, config);
  config.rotary = ReadRotaryConfig(object, source, config.head_dim, config.max_position_embeddings);
  return config;
}

}  // namespace ullage::models
