#include "models/llama_model.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <string_view>
#include <utility>
#include <vector>

#include "models/initial_value.h"
#include "models/llama.h"
#include "models/llama_config.h"

namespace ullage::models {
namespace {

constexpr std::string_view kPrefix = "model.";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

class LlamaModel final : public Model {
 public:
  LlamaModel(nlohmann::json json, LlamaConfig config, c10::Device device)
      : json_(std::move(json)), config_(std::move(config)), llama_(config_, device) {}

  torch::nn::Module& module() override { return llama_; }
  at::Tensor Logits(const Batch& batch) override { return llama_.Logits(batch); }
  LossAndLogits Loss(const Batch& batch) override { return {llama_.Loss(batch), {}}; }
  void set_recompute(bool recompute) override { llama_.set_recompute(recompute); }

  Task task() const override { return Task::kCausalLanguage; }
  std::string_view family() const override { return config_.model_type; }
  std::int64_t vocab_size() const override { return config_.vocab_size; }
  std::int64_t max_positions() const override { return config_.max_position_embeddings; }
  const std::vector<std::string>& labels() const override { return labels_; }

  std::vector<std::string> no_decay_patterns() const override {
    return {R"(\.bias$)", R"(norm\.weight$)"};
  }
  // A language model whose head is missing would learn from noise: nothing is left out silently.
  std::vector<std::string> head_patterns() const override { return {}; }
  std::vector<std::string> unneeded_tensor_patterns() const override {
    return {R"(rotary_emb\.inv_freq$)"};
  }

  std::vector<std::string> FileNames(const std::string& parameter) const override;
  void InitialValue(const std::string& name, std::uint64_t seed, at::Tensor& out) const override;
  std::string ExportConfig(std::string_view dtype) const override;

 private:
  nlohmann::json json_;
  LlamaConfig config_;
  LlamaForCausalLm llama_;
  const std::vector<std::string> labels_;
};

// Files of a bare decoder lack the prefix. Of tied weights files hold one, mostly the embedding.
std::vector<std::string> LlamaModel::FileNames(const std::string& parameter) const {
  std::vector<std::string> names = {parameter};
  if (config_.tie_word_embeddings && parameter == kHead) names.emplace_back(kEmbedding);
  if (names.back().starts_with(kPrefix)) names.push_back(names.back().substr(kPrefix.size()));
  if (config_.tie_word_embeddings && parameter == kEmbedding) names.emplace_back(kHead);
  return names;
}

void LlamaModel::InitialValue(const std::string& name, std::uint64_t seed, at::Tensor& out) const {
  const at::NoGradGuard no_grad;
  const bool is_tied_head = config_.tie_word_embeddings && name == kHead;
  const std::string source = is_tied_head ? std::string(kEmbedding) : name;
  if (source.ends_with("norm.weight")) {
    out.fill_(1);
  } else if (source.ends_with(".bias")) {
    out.zero_();
  } else {
    FillNormal(source, seed, config_.initializer_range, out);
    const bool padded = source == kEmbedding && config_.pad_token_id >= 0;
    if (padded) out.select(0, config_.pad_token_id).zero_();
  }
}

std::string LlamaModel::ExportConfig(std::string_view dtype) const {
  nlohmann::json json = json_;
  json["architectures"] = {CausalArchitecture(config_.model_type)};
  json.erase("torch_dtype");  // the older name of dtype
  json["dtype"] = dtype;
  json.erase("_name_or_path");
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::unique_ptr<Model> MakeLlamaModel(nlohmann::json config, const std::string& source,
                                      c10::Device device) {
  LlamaConfig parsed = ReadLlamaConfig(config, source);
  return std::make_unique<LlamaModel>(std::move(config), std::move(parsed), device);
}

}  // namespace ullage::models
