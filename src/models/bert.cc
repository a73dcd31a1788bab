#include "models/bert.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <string>
#include <vector>

#include "activations/recompute.h"
#include "models/attention.h"
#include "models/dropout.h"
#include "models/fused_layers.h"
#include "models/layers.h"
#include "models/linear_cross_entropy.h"
#include "models/projections.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

at::Tensor Activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
  }
  throw StateError("unknown activation");
}

struct Embeddings final : torch::nn::Module {
  Embeddings(const BertConfig& config, c10::Device device) : config_(config) {
    const std::int64_t width = config.hidden_size;
    const auto table = [&](const char* name, std::int64_t rows) {
      return register_module(name, std::make_shared<Embedding>(rows, width, device));
    };
    words_ = table("word_embeddings", config.vocab_size);
    positions_ = table("position_embeddings", config.max_position_embeddings);
    token_types_ = table("token_type_embeddings", config.type_vocab_size);
    norm_ = register_module("LayerNorm",
                            std::make_shared<LayerNorm>(width, config.layer_norm_eps, device));
  }

  at::Tensor operator()(const at::Tensor& input_ids) const {
    const at::Tensor words = at::embedding(words_->weight, input_ids, config_.pad_token_id);
    // The same for every record, so added up once.
    const at::Tensor places =
        positions_->weight.slice(0, 0, input_ids.size(1)) + token_types_->weight.select(0, 0);
    const at::Tensor sum = (words + places).view({-1, config_.hidden_size});
    return Dropout((*norm_)(sum), is_training() ? config_.hidden_dropout_prob : 0);
  }

 private:
  BertConfig config_;
  std::shared_ptr<Embedding> words_, positions_, token_types_;
  std::shared_ptr<LayerNorm> norm_;
};

struct Layer final : torch::nn::Module {
  Layer(const BertConfig& config, c10::Device device) : config_(config) {
    const std::int64_t width = config.hidden_size, inner = config.intermediate_size;
    const auto group = [](torch::nn::Module& parent, const char* name) {
      return parent.register_module(name, std::make_shared<Group>());
    };
    const auto attention = group(*this, "attention");
    const auto self = attention->Add<Group>("self");
    query_ = self->Add<Linear>("query", width, width, device);
    key_ = self->Add<Linear>("key", width, width, device);
    value_ = self->Add<Linear>("value", width, width, device);
    const auto attention_output = attention->Add<Group>("output");
    attention_dense_ = attention_output->Add<Linear>("dense", width, width, device);
    attention_norm_ =
        attention_output->Add<LayerNorm>("LayerNorm", width, config.layer_norm_eps, device);
    up_ = group(*this, "intermediate")->Add<Linear>("dense", width, inner, device);
    const auto output = group(*this, "output");
    down_ = output->Add<Linear>("dense", inner, width, device);
    output_norm_ = output->Add<LayerNorm>("LayerNorm", width, config.layer_norm_eps, device);
    parameters_ = parameters();
  }

  // `x` [batch * tokens, width]. With `first_only` the result is the first token of each record,
  // [batch, width], and only that is computed. Recomputed when there is a place for its input.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias, std::int64_t batch,
                        std::int64_t tokens, bool first_only,
                        activations::KeptInputs* inputs) const {
    if (inputs == nullptr) return Run(x, bias, batch, tokens, first_only);
    return activations::Recompute(
        [=, this](const at::Tensor& y) { return Run(y, bias, batch, tokens, first_only); }, x,
        parameters_, inputs);
  }

 private:
  at::Tensor Run(const at::Tensor& x, const at::Tensor& bias, std::int64_t batch,
                 std::int64_t tokens, bool first_only) const {
    const double dropout = is_training() ? config_.hidden_dropout_prob : 0;
    const double attention_dropout = is_training() ? config_.attention_probs_dropout_prob : 0;
    const std::int64_t width = config_.hidden_size, queries = first_only ? 1 : tokens;
    const at::Tensor asking = first_only ? x.view({batch, tokens, width}).select(1, 0) : x;
    const bool fused =
        config_.hidden_act == Activation::kGelu && ShouldFuse(x, config_.intermediate_size);
    std::vector<at::Tensor> maps;
    if (fused && !first_only) {
      maps = Project(x, {query_.get(), key_.get(), value_.get()});
    } else {
      maps = {(*query_)(asking), (*key_)(x), (*value_)(x)};
    }
    const at::Tensor seen =
        SelfAttention(maps[0].view({batch, queries, width}), maps[1].view({batch, tokens, width}),
                      maps[2].view({batch, tokens, width}), bias, config_.num_attention_heads,
                      attention_dropout)
            .view({batch * queries, width});
    if (fused) {
      const at::Tensor attended =
          DenseAddNorm(seen, *attention_dense_, asking, *attention_norm_, dropout);
      return FeedForward(attended, *up_, *down_, *output_norm_, dropout);
    }
    const at::Tensor attended =
        (*attention_norm_)(Dropout((*attention_dense_)(seen), dropout) + asking);
    const at::Tensor inner = Activate((*up_)(attended), config_.hidden_act);
    return (*output_norm_)(Dropout((*down_)(inner), dropout) + attended);
  }

  BertConfig config_;
  std::shared_ptr<Linear> query_, key_, value_, attention_dense_, up_, down_;
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
  std::vector<at::Tensor> parameters_;
};

// What is added to attention scores: 0 for tokens, half the lowest number of `dtype` for padding
// (half, so that no sum with a score overflows). [B, 1, S], or undefined like the mask.
at::Tensor MaskBias(const at::Tensor& attention_mask, at::ScalarType dtype) {
  if (!attention_mask.defined()) return {};
  double highest = std::numeric_limits<float>::max();
  if (dtype == at::kHalf) highest = 65504;
  if (dtype == at::kBFloat16) highest = 3.3895313892515355e38;
  return ((attention_mask.to(dtype) - 1) * (highest / 2)).unsqueeze(1);
}

std::string Text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "(none)";
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

}  // namespace

class Bert final : public torch::nn::Module {
 public:
  Bert(const BertConfig& config, c10::Device device) {
    embeddings_ = register_module("embeddings", std::make_shared<Embeddings>(config, device));
    const auto encoder = register_module("encoder", std::make_shared<Group>());
    const auto layers = encoder->Add<Group>("layer");
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back(layers->Add<Layer>(std::to_string(i), config, device));
    }
    const auto pooler = register_module("pooler", std::make_shared<Group>());
    pooler_ = pooler->Add<Linear>("dense", config.hidden_size, config.hidden_size, device);
  }

  // [B * S, width], or the first tokens only: [B, width].
  at::Tensor Encode(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                    bool first_only) const {
    at::Tensor x = (*embeddings_)(input_ids);
    const at::Tensor bias = MaskBias(attention_mask, x.scalar_type());
    activations::KeptInputs inputs(std::ssize(layers_));
    for (const auto& layer : layers_) {
      x = (*layer)(x, bias, input_ids.size(0), input_ids.size(1),
                   first_only && layer == layers_.back(), recompute_ ? &inputs : nullptr);
    }
    return x;
  }

  at::Tensor Pool(const at::Tensor& first_tokens) const {
    return at::tanh((*pooler_)(first_tokens));
  }

  void set_recompute(bool recompute) { recompute_ = recompute; }

 private:
  bool recompute_ = false;
  std::shared_ptr<Embeddings> embeddings_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<Linear> pooler_;
};

BertForSequenceClassification::BertForSequenceClassification(const BertConfig& config,
                                                             c10::Device device)
    : config_(config),
      bert_(register_module("bert", std::make_shared<Bert>(config, device))),
      classifier_(register_module(
          "classifier",
          std::make_shared<Linear>(config.hidden_size, std::ssize(config.labels), device))) {}

void BertForSequenceClassification::CheckInputs(const at::Tensor& input_ids,
                                                const at::Tensor& attention_mask) const {
  const bool matrix = input_ids.dim() == 2;
  if (!matrix || (attention_mask.defined() && attention_mask.sizes() != input_ids.sizes())) {
    throw ConfigError(fmt::format("input_ids of shape {} with attention_mask of shape {}",
                                  Text(input_ids), Text(attention_mask)),
                      "both are [records, tokens]");
  }
  if (input_ids.size(1) < 1 || input_ids.size(1) > config_.max_position_embeddings) {
    throw ConfigError(fmt::format("records of {} tokens, the model has {} positions",
                                  input_ids.size(1), config_.max_position_embeddings),
                      "truncate them: --max-length");
  }
}

at::Tensor BertForSequenceClassification::HiddenStates(const at::Tensor& input_ids,
                                                       const at::Tensor& attention_mask) {
  CheckInputs(input_ids, attention_mask);
  return bert_->Encode(input_ids, attention_mask, /*first_only=*/false)
      .view({input_ids.size(0), input_ids.size(1), config_.hidden_size});
}

at::Tensor BertForSequenceClassification::Forward(const at::Tensor& input_ids,
                                                  const at::Tensor& attention_mask) {
  CheckInputs(input_ids, attention_mask);
  const at::Tensor first = bert_->Encode(input_ids, attention_mask, /*first_only=*/true);
  const double dropout = is_training() ? config_.classifier_dropout : 0;
  return (*classifier_)(Dropout(bert_->Pool(first), dropout));
}

LossAndLogits BertForSequenceClassification::Loss(const at::Tensor& input_ids,
                                                  const at::Tensor& attention_mask,
                                                  const at::Tensor& labels) {
  const at::Tensor logits = Forward(input_ids, attention_mask);
  const at::Tensor loss =
      at::cross_entropy_loss(logits.to(at::kFloat), labels, {}, at::Reduction::Sum, kIgnoredLabel);
  return {loss, logits};
}

void BertForSequenceClassification::set_recompute(bool recompute) {
  bert_->set_recompute(recompute);
}

}  // namespace ullage::models
