#include "models/llama.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <vector>

#include "activations/recompute.h"
#include "models/causal_attention.h"
#include "models/gated.h"
#include "models/layers.h"
#include "models/linear_cross_entropy.h"
#include "models/projections.h"
#include "models/rotary.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

// What all layers of a forward share.
struct Surroundings {
  std::int64_t batch = 0, length = 0;
  RotaryTables rotary;
  std::map<std::int64_t, at::Tensor> biases;  // by sliding window, as CausalBias gives them
};

struct Attention final : torch::nn::Module {
  Attention(const LlamaConfig& config, std::int64_t window, c10::Device device)
      : config_(config), window_(window) {
    const std::int64_t width = config.hidden_size;
    const std::int64_t queries = config.num_attention_heads * config.head_dim;
    const std::int64_t keys = config.num_key_value_heads * config.head_dim;
    const auto linear = [&](const char* name, std::int64_t in, std::int64_t out, bool bias) {
      return register_module(name, std::make_shared<Linear>(in, out, device, bias));
    };
    query_ = linear("q_proj", width, queries, config.query_key_value_bias);
    key_ = linear("k_proj", width, keys, config.query_key_value_bias);
    value_ = linear("v_proj", width, keys, config.query_key_value_bias);
    output_ = linear("o_proj", queries, width, config.attention_output_bias);
    if (!config.query_key_norm) return;
    const auto norm = [&](const char* name) {
      return register_module(
          name, std::make_shared<RmsNorm>(config.head_dim, config.rms_norm_eps, device));
    };
    query_norm_ = norm("q_norm");
    key_norm_ = norm("k_norm");
  }

  // `x` [B * S, width], as is the result.
  at::Tensor operator()(const at::Tensor& x, const Surroundings& around) const {
    const std::int64_t size = config_.head_dim, width = AttentionWidth(size, x.device());
    const auto split = [&](const at::Tensor& y) {
      return y.view({around.batch, around.length, y.size(1) / size, size});
    };
    const std::vector<at::Tensor> projected = Project(x, {query_.get(), key_.get(), value_.get()});
    at::Tensor query = split(projected[0]), key = split(projected[1]);
    if (query_norm_ != nullptr) {
      query = (*query_norm_)(query);
      key = (*key_norm_)(key);
    }
    const at::Tensor seen =
        CausalAttention(ApplyRotary(query, around.rotary, width),
                        ApplyRotary(key, around.rotary, width), split(projected[2]),
                        around.biases.at(window_), is_training() ? config_.attention_dropout : 0);
    return (*output_)(seen.view({x.size(0), seen.size(-1)}));
  }

 private:
  LlamaConfig config_;
  std::int64_t window_;
  std::shared_ptr<Linear> query_, key_, value_, output_;
  std::shared_ptr<RmsNorm> query_norm_, key_norm_;
};

struct Mlp final : torch::nn::Module {
  Mlp(const LlamaConfig& config, c10::Device device) {
    const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
      return register_module(name, std::make_shared<Linear>(in, out, device, config.mlp_bias));
    };
    gate_ = linear("gate_proj", config.hidden_size, config.intermediate_size);
    up_ = linear("up_proj", config.hidden_size, config.intermediate_size);
    down_ = linear("down_proj", config.intermediate_size, config.hidden_size);
  }

  at::Tensor operator()(const at::Tensor& x) const {
    const std::vector<at::Tensor> projected = Project(x, {gate_.get(), up_.get()});
    return (*down_)(GatedSilu(projected[0], projected[1]));
  }

 private:
  std::shared_ptr<Linear> gate_, up_, down_;
};

struct Layer final : torch::nn::Module {
  Layer(const LlamaConfig& config, std::int64_t window, c10::Device device) {
    attention_ = register_module("self_attn", std::make_shared<Attention>(config, window, device));
    mlp_ = register_module("mlp", std::make_shared<Mlp>(config, device));
    const auto norm = [&](const char* name) {
      return register_module(
          name, std::make_shared<RmsNorm>(config.hidden_size, config.rms_norm_eps, device));
    };
    attention_norm_ = norm("input_layernorm");
    mlp_norm_ = norm("post_attention_layernorm");
    parameters_ = parameters();
  }

  // Recomputed when there is a place for its input.
  at::Tensor operator()(const at::Tensor& x, const Surroundings& around,
                        activations::KeptInputs* inputs) const {
    if (inputs == nullptr) return Run(x, around);
    return activations::Recompute([this, around](const at::Tensor& y) { return Run(y, around); }, x,
                                  parameters_, inputs);
  }

 private:
  at::Tensor Run(const at::Tensor& x, const Surroundings& around) const {
    // Added in the place of the maps' results, which nothing else needs.
    const at::Tensor attended = (*attention_)((*attention_norm_)(x), around).add_(x);
    return (*mlp_)((*mlp_norm_)(attended)).add_(attended);
  }

  std::shared_ptr<Attention> attention_;
  std::shared_ptr<Mlp> mlp_;
  std::shared_ptr<RmsNorm> attention_norm_, mlp_norm_;
  std::vector<at::Tensor> parameters_;
};

std::string Text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "(none)";
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

}  // namespace

class Llama final : public torch::nn::Module {
 public:
  Llama(const LlamaConfig& config, c10::Device device) : config_(config) {
    embedding_ = register_module(
        "embed_tokens", std::make_shared<Embedding>(config.vocab_size, config.hidden_size, device));
    const auto layers = register_module("layers", std::make_shared<Group>());
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back(layers->Add<Layer>(
          std::to_string(i), config, config.sliding_window[static_cast<std::size_t>(i)], device));
    }
    norm_ = register_module(
        "norm", std::make_shared<RmsNorm>(config.hidden_size, config.rms_norm_eps, device));
    rotary_ = register_module("rotary_emb", std::make_shared<RotaryEmbedding>(config.rotary));
  }

  at::Tensor operator()(const Batch& batch) const {
    const std::int64_t length = batch.input_ids.size(1);
    const c10::Device device = batch.input_ids.device();
    at::Tensor x = at::embedding(embedding_->weight, batch.input_ids, config_.pad_token_id)
                       .view({batch.input_ids.numel(), config_.hidden_size});
    Surroundings around{batch.input_ids.size(0),
                        length,
                        (*rotary_)(batch.position_ids, length, device, x.scalar_type()),
                        {}};
    for (const std::int64_t window : config_.sliding_window) {
      if (around.biases.contains(window)) continue;
      around.biases[window] =
          CausalBias(length, window, batch.document_ids, device, x.scalar_type());
    }
    activations::KeptInputs inputs(std::ssize(layers_));
    for (const auto& layer : layers_) x = (*layer)(x, around, recompute_ ? &inputs : nullptr);
    return (*norm_)(x);
  }

  const at::Tensor& embedding() const { return embedding_->weight; }
  void set_recompute(bool recompute) { recompute_ = recompute; }

 private:
  LlamaConfig config_;
  bool recompute_ = false;
  std::shared_ptr<Embedding> embedding_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<RotaryEmbedding> rotary_;
};

struct LlamaHead final : torch::nn::Module {
  explicit LlamaHead(const at::Tensor& values) : weight(register_parameter("weight", values)) {}

  at::Tensor weight;  // [vocab_size, hidden_size]
};

LlamaForCausalLm::LlamaForCausalLm(const LlamaConfig& config, c10::Device device)
    : config_(config), model_(register_module("model", std::make_shared<Llama>(config, device))) {
  const at::Tensor weight = config.tie_word_embeddings
                                ? model_->embedding()
                                : at::empty({config.vocab_size, config.hidden_size}, device);
  head_ = register_module("lm_head", std::make_shared<LlamaHead>(weight));
}

void LlamaForCausalLm::CheckInputs(const Batch& batch) const {
  const at::Tensor& ids = batch.input_ids;
  const auto fits = [&](const at::Tensor& other) {
    return !other.defined() || other.sizes() == ids.sizes();
  };
  if (ids.dim() != 2 || !fits(batch.attention_mask) || !fits(batch.labels) ||
      !fits(batch.position_ids) || !fits(batch.document_ids)) {
    throw ConfigError(
        fmt::format("input_ids of shape {} with attention_mask {}, labels {}, position_ids {}, "
                    "document_ids {}",
                    Text(ids), Text(batch.attention_mask), Text(batch.labels),
                    Text(batch.position_ids), Text(batch.document_ids)),
        "all are [records, tokens]");
  }
  const std::int64_t length = ids.size(1);
  if (length < 1 || length > config_.max_position_embeddings) {
    throw ConfigError(fmt::format("records of {} tokens, the model has {} positions", length,
                                  config_.max_position_embeddings),
                      "cut them into shorter ones");
  }
  const at::Tensor& mask = batch.attention_mask;
  if (!mask.defined() || !mask.is_cpu() || length == 1) return;
  const at::Tensor real = mask != 0;
  if ((real.slice(1, 1) > real.slice(1, 0, length - 1)).any().item<bool>()) {
    throw ConfigError("attention_mask with a token after padding",
                      "a language model is padded at the end of its records");
  }
}

at::Tensor LlamaForCausalLm::HiddenStates(const Batch& batch) {
  CheckInputs(batch);
  return (*model_)(batch);
}

at::Tensor LlamaForCausalLm::Logits(const Batch& batch) {
  return at::linear(HiddenStates(batch), head_->weight)
      .view({batch.input_ids.size(0), batch.input_ids.size(1), config_.vocab_size});
}

at::Tensor LlamaForCausalLm::Loss(const Batch& batch) {
  if (!batch.labels.defined()) {
    throw ConfigError("a batch without labels", "the loss needs labels [records, tokens]");
  }
  const at::Tensor hidden = HiddenStates(batch);
  // The label of the token after; none after the last.
  const at::Tensor targets =
      at::constant_pad_nd(batch.labels.slice(1, 1), {0, 1}, kIgnoredLabel).to(at::kLong);
  LossHeadForm form = FormOfLossHead(config_.vocab_size, hidden.device());
  form.ignored_at_least = targets.size(0);
  return LinearCrossEntropy(hidden, head_->weight, targets.reshape({-1}), form);
}

void LlamaForCausalLm::set_recompute(bool recompute) {
  model_->set_recompute(recompute);
}

}  // namespace ullage::models
