#include "models/bert_config.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "models/json_fields.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxLabels = 1 << 20;
// Tensors of 2^40 elements and more are no BERT; the limit also keeps byte counts from overflowing.
constexpr std::int64_t kMaxTensorElements = std::int64_t{1} << 40;

// Throws UnsupportedError where the file asks for a variant that is not built here.
void RefuseVariants(const JsonFields& fields, std::int64_t hidden_size) {
  const auto refuse = [&](const char* key, const std::string& offered) {
    throw UnsupportedError(fields.Describe(key) + " is not offered", offered);
  };
  if (fields.Bool("is_decoder", false)) refuse("is_decoder", "only encoders are offered");
  if (fields.Bool("add_cross_attention", false)) {
    refuse("add_cross_attention", "only encoders without cross-attention are offered");
  }
  if (fields.String("position_embedding_type", "absolute") != "absolute") {
    refuse("position_embedding_type", "only absolute positions are offered");
  }
  if (fields.Integer("embedding_size", hidden_size, 1, kMaxDimension) != hidden_size) {
    refuse("embedding_size", "the embeddings must be as wide as the layers (hidden_size)");
  }
  if (fields.Find("quantization_config") != nullptr) {
    refuse("quantization_config", "bring the weights in fp32, bf16 or fp16");
  }
  const nlohmann::json* pruned = fields.Find("pruned_heads");
  if (pruned != nullptr && !pruned->empty()) {
    refuse("pruned_heads", "bring a model with all its heads");
  }
  if (fields.String("problem_type", "single_label_classification") !=
      "single_label_classification") {
    refuse("problem_type", "single_label_classification is offered");
  }
}

Activation ReadActivation(const JsonFields& fields) {
  const std::string name = fields.String("hidden_act", "gelu");
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  throw UnsupportedError(fields.Describe("hidden_act") + " is not offered",
                         "gelu, gelu_new, gelu_pytorch_tanh and relu are offered");
}

std::vector<std::string> NumberedLabels(std::int64_t count) {
  std::vector<std::string> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(fmt::format("LABEL_{}", i));
  return labels;
}

// id2label: {"0": "negative", "1": "positive"}; every id from 0 to its size - 1 must be there.
std::vector<std::string> ReadLabelNames(const JsonFields& fields, const nlohmann::json& id2label) {
  const std::string allowed =
      "an object with a name for each of the ids \"0\", \"1\", ... without a gap";
  if (!id2label.is_object()) fields.Fail("id2label", allowed);
  std::vector<std::string> labels;
  for (std::size_t id = 0; id < id2label.size(); ++id) {
    const auto found = id2label.find(std::to_string(id));
    if (found == id2label.end() || !found->is_string()) fields.Fail("id2label", allowed);
    labels.push_back(found->get<std::string>());
  }
  return labels;
}

std::vector<std::string> ReadLabels(const JsonFields& fields, int num_labels_override) {
  std::vector<std::string> labels;
  const std::int64_t num_labels = fields.Integer("num_labels", 0, 0, kMaxLabels);
  if (const nlohmann::json* id2label = fields.Find("id2label")) {
    labels = ReadLabelNames(fields, *id2label);
    if (num_labels != 0 && num_labels != std::ssize(labels) && num_labels_override <= 0) {
      fields.Fail("num_labels",
                  fmt::format("the number of names in id2label, which is {}", labels.size()));
    }
  } else {
    labels = NumberedLabels(num_labels == 0 ? 2 : num_labels);
  }
  if (num_labels_override > 0 && num_labels_override != std::ssize(labels)) {
    labels = NumberedLabels(num_labels_override);
  }
  if (labels.size() < 2) {
    throw UnsupportedError(
        fmt::format("{} or {}: a classifier with {} label(s)", fields.Describe("num_labels"),
                    fields.Describe("id2label"), labels.size()),
        "at least two labels are needed; regression is not offered");
  }
  return labels;
}

}  // namespace

BertConfig ReadBertConfig(const nlohmann::json& object, const std::string& source,
                          int num_labels_override) {
  const JsonFields fields(object, source);
  BertConfig config;
  const auto dimension = [&](const char* key, std::int64_t& value, std::int64_t highest) {
    value = fields.Integer(key, value, 1, highest);
  };
  dimension("vocab_size", config.vocab_size, std::numeric_limits<std::int32_t>::max());
  dimension("hidden_size", config.hidden_size, kMaxDimension);
  dimension("num_hidden_layers", config.num_hidden_layers, kMaxLayers);
  dimension("num_attention_heads", config.num_attention_heads, kMaxDimension);
  dimension("intermediate_size", config.intermediate_size, kMaxDimension);
  dimension("max_position_embeddings", config.max_position_embeddings, kMaxDimension);
  dimension("type_vocab_size", config.type_vocab_size, kMaxDimension);
  RefuseVariants(fields, config.hidden_size);
  if (config.hidden_size % config.num_attention_heads != 0) {
    fields.Fail("num_attention_heads",
                fmt::format("a divisor of hidden_size, which is {}", config.hidden_size));
  }
  const std::pair<const char*, std::int64_t> rows[] = {
      {"vocab_size", config.vocab_size},
      {"intermediate_size", config.intermediate_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"type_vocab_size", config.type_vocab_size},
      {"hidden_size", config.hidden_size}};
  for (const auto& [key, value] : rows) {
    if (value > kMaxTensorElements / config.hidden_size) {
      fields.Fail(key, fmt::format("so small that times hidden_size ({}) it is at most 2^40",
                                   config.hidden_size));
    }
  }
  const bool no_padding = object.contains("pad_token_id") && object["pad_token_id"].is_null();
  config.pad_token_id =
      no_padding ? -1 : fields.Integer("pad_token_id", 0, 0, config.vocab_size - 1);
  config.hidden_act = ReadActivation(fields);
  const auto share = [&](const char* key, double fallback) {
    return fields.Number(key, fallback, 0.0, 1.0);
  };
  config.hidden_dropout_prob = share("hidden_dropout_prob", config.hidden_dropout_prob);
  config.attention_probs_dropout_prob =
      share("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  config.classifier_dropout = share("classifier_dropout", config.hidden_dropout_prob);
  config.initializer_range = fields.Number("initializer_range", config.initializer_range, 0, 10);
  config.layer_norm_eps = fields.Number("layer_norm_eps", config.layer_norm_eps, 0, 1);
  config.labels = ReadLabels(fields, num_labels_override);
  return config;
}

}  // namespace ullage::models
