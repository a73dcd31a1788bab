#include "models/bert_model.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <string_view>
#include <utility>
#include <vector>

#include "models/bert.h"
#include "models/bert_config.h"
#include "models/initial_value.h"

namespace ullage::models {
namespace {

constexpr std::string_view kPrefix = "bert.";

class BertModel final : public Model {
 public:
  BertModel(nlohmann::json json, BertConfig config, c10::Device device)
      : json_(std::move(json)), config_(std::move(config)), bert_(config_, device) {}

  torch::nn::Module& module() override { return bert_; }
  at::Tensor Logits(const Batch& batch) override {
    return bert_.Forward(batch.input_ids, batch.attention_mask);
  }
  LossAndLogits Loss(const Batch& batch) override {
    return bert_.Loss(batch.input_ids, batch.attention_mask, batch.labels);
  }
  void set_recompute(bool recompute) override { bert_.set_recompute(recompute); }

  Task task() const override { return Task::kClassification; }
  std::string_view family() const override { return "bert"; }
  std::int64_t vocab_size() const override { return config_.vocab_size; }
  std::int64_t max_positions() const override { return config_.max_position_embeddings; }
  const std::vector<std::string>& labels() const override { return config_.labels; }

  std::vector<std::string> no_decay_patterns() const override {
    return {R"(bias$)", R"(LayerNorm\.weight$)"};
  }
  std::vector<std::string> head_patterns() const override {
    return {R"(^classifier\.)", R"(^bert\.pooler\.)"};
  }
  std::vector<std::string> unneeded_tensor_patterns() const override {
    return {R"(^(bert\.)?embeddings\.(position_ids|token_type_ids)$)", R"(^cls\.)"};
  }

  std::vector<std::string> FileNames(const std::string& parameter) const override;
  void InitialValue(const std::string& name, std::uint64_t seed, at::Tensor& out) const override;
  std::string ExportConfig(std::string_view dtype) const override;

 private:
  nlohmann::json json_;
  BertConfig config_;
  BertForSequenceClassification bert_;
};

// Files of a bare encoder lack the prefix; files converted from TensorFlow call a LayerNorm's
// weight gamma and its bias beta.
std::vector<std::string> BertModel::FileNames(const std::string& parameter) const {
  std::vector<std::string> names = {parameter};
  const auto replace_end = [&](std::string_view end, std::string_view by) {
    if (!parameter.ends_with(end)) return;
    names.push_back(parameter.substr(0, parameter.size() - end.size()) + std::string(by));
  };
  replace_end("LayerNorm.weight", "LayerNorm.gamma");
  replace_end("LayerNorm.bias", "LayerNorm.beta");
  if (parameter.starts_with(kPrefix)) {
    const std::size_t with_prefix = names.size();
    for (std::size_t i = 0; i < with_prefix; ++i) names.push_back(names[i].substr(kPrefix.size()));
  }
  return names;
}

void BertModel::InitialValue(const std::string& name, std::uint64_t seed, at::Tensor& out) const {
  const at::NoGradGuard no_grad;
  if (name.ends_with("LayerNorm.weight")) {
    out.fill_(1);
  } else if (name.ends_with("bias")) {
    out.zero_();
  } else {
    FillNormal(name, seed, config_.initializer_range, out);
    const bool padded = name.ends_with("word_embeddings.weight") && config_.pad_token_id >= 0;
    if (padded) out.select(0, config_.pad_token_id).zero_();
  }
}

std::string BertModel::ExportConfig(std::string_view dtype) const {
  nlohmann::json json = json_;
  json["architectures"] = {"BertForSequenceClassification"};
  json["problem_type"] = "single_label_classification";
  json["id2label"] = nlohmann::json::object();
  json["label2id"] = nlohmann::json::object();
  for (std::size_t id = 0; id < config_.labels.size(); ++id) {
    json["id2label"][std::to_string(id)] = config_.labels[id];
    json["label2id"][config_.labels[id]] = id;
  }
  json["num_labels"] = config_.labels.size();
  json.erase("torch_dtype");  // the older name of dtype
  json["dtype"] = dtype;
  json.erase("_name_or_path");
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::unique_ptr<Model> MakeBertModel(nlohmann::json config, const std::string& source,
                                     int num_labels_override, c10::Device device) {
  BertConfig parsed = ReadBertConfig(config, source, num_labels_override);
  return std::make_unique<BertModel>(std::move(config), std::move(parsed), device);
}

}  // namespace ullage::models
