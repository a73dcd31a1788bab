// A model family as the command line needs it: build from a config.json, run, load, export.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace ullage::models {

enum class Task : std::uint8_t {
  kClassification,  // one label for each record
  kCausalLanguage,  // each token predicts the next
};

// What a forward reads, on the device of the parameters. Undefined tensors say nothing: no
// padding, positions counted from 0, one document in each row. Which are read, and how, stands in
// bert.h and llama.h.
struct Batch {
  at::Tensor input_ids;       // [B, S]
  at::Tensor attention_mask;  // [B, S], 1 for a token and 0 for padding
  at::Tensor labels;          // -100 counts nowhere. Classification: [B]. Causal: [B, S], unshifted
  at::Tensor position_ids;    // [B, S]; causal only
  at::Tensor document_ids;    // [B, S]; causal only
};

struct LossAndLogits {
  at::Tensor loss;    // fp32 scalar: the sum over the labels that count
  at::Tensor logits;  // classification: [B, num_labels] in the model's dtype; causal: undefined
};

class Model {
 public:
  virtual ~Model() = default;

  virtual torch::nn::Module& module() = 0;

  // Training or evaluation is the module's own mode. Not to be called on two threads at once while
  // training. Logits: [B, num_labels], or [B, S, vocab_size] for causal models.
  virtual at::Tensor Logits(const Batch& batch) = 0;
  virtual LossAndLogits Loss(const Batch& batch) = 0;
  // The same for classification.
  at::Tensor Logits(const at::Tensor& input_ids, const at::Tensor& attention_mask) {
    return Logits(Batch{input_ids, attention_mask, {}, {}, {}});
  }
  LossAndLogits Loss(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                     const at::Tensor& labels) {
    return Loss(Batch{input_ids, attention_mask, labels, {}, {}});
  }

  // From now on each layer keeps its input only and runs again in backward, with the same bits
  // (activations/recompute.h). Off at first.
  virtual void set_recompute(bool recompute) = 0;

  virtual Task task() const = 0;
  // The model_type: "bert", "llama", "mistral", "qwen2", "qwen3".
  virtual std::string_view family() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::int64_t max_positions() const = 0;
  virtual const std::vector<std::string>& labels() const = 0;  // of classes; causal: none
  std::int64_t num_labels() const { return static_cast<std::int64_t>(labels().size()); }

  // Regular expressions, searched in parameter names: no weight decay on these by default.
  virtual std::vector<std::string> no_decay_patterns() const = 0;
  // Regular expressions: parameters that files of a bare or pretrained encoder lack, so that a new
  // value for them is nothing unusual (what the hint of a missing weight suggests to allow).
  virtual std::vector<std::string> head_patterns() const = 0;
  // Regular expressions, searched in the names of a file's tensors: known to be of no use here.
  virtual std::vector<std::string> unneeded_tensor_patterns() const = 0;

  // The names under which a file may hold the parameter, the usual one first.
  virtual std::vector<std::string> FileNames(const std::string& parameter) const = 0;

  // Fills `out`, the whole parameter `name` of any floating dtype, contiguous, with its value in an
  // untrained model: a function of `seed` and `name` alone, computed in fp32.
  virtual void InitialValue(const std::string& name, std::uint64_t seed, at::Tensor& out) const = 0;

  // The config.json of an exported model: the file it was built from, with the labels, the
  // architecture and `dtype` ("float32", "bfloat16", "float16") brought up to date.
  virtual std::string ExportConfig(std::string_view dtype) const = 0;
};

// Builds the model that a Hugging Face config.json describes, with uninitialised fp32 parameters on
// `device`: Meta costs no memory. `num_labels_override` above 0 replaces the file's classes (a
// language model has none: ConfigError).
// Throws IoError when the file cannot be read, ConfigError when it makes no sense, UnsupportedError
// for a model_type or variant that is not offered.
std::unique_ptr<Model> MakeModel(const std::string& config_json_path, int num_labels_override,
                                 c10::Device device);

}  // namespace ullage::models
