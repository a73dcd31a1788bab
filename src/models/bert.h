// BERT with a classifier on its first token, as transformers' BertForSequenceClassification.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>

#include "models/bert_config.h"
#include "models/model.h"

namespace ullage::models {

class Bert;     // embeddings, encoder, pooler; in bert.cc
struct Linear;  // layers.h

// Modules and parameters have the names that transformers gives them, in its order. Parameters are
// made uninitialised, fp32, on the given device; Module::to() changes their dtype, and forward
// computes in whatever dtype they have by then.
//
// Everywhere: `input_ids` [B, S], int64 or int32, below vocab_size; `attention_mask` [B, S], any
// dtype, 1 for a token and 0 for padding, or undefined when there is no padding. Positions are
// 0 to S - 1, token types 0. S is 1 to max_position_embeddings (else ConfigError). B may be 0.
// Dropout is applied while the module is in training mode.
class BertForSequenceClassification final : public torch::nn::Module {
 public:
  BertForSequenceClassification(const BertConfig& config, c10::Device device);

  // The last layer's output [B, S, hidden_size].
  at::Tensor HiddenStates(const at::Tensor& input_ids, const at::Tensor& attention_mask);

  // The scores of the classes [B, num_labels]. The classifier reads the first token only, so the
  // last layer computes nothing but that token, from the keys and values of all.
  at::Tensor Forward(const at::Tensor& input_ids, const at::Tensor& attention_mask);

  // `labels` [B], int64, -100 where a record has none.
  LossAndLogits Loss(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                     const at::Tensor& labels);

  // Layers keep their input and run again in backward (activations/recompute.h). Off at first.
  void set_recompute(bool recompute);

 private:
  void CheckInputs(const at::Tensor& input_ids, const at::Tensor& attention_mask) const;

  BertConfig config_;
  std::shared_ptr<Bert> bert_;
  std::shared_ptr<Linear> classifier_;
};

}  // namespace ullage::models
