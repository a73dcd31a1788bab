// Decoders of the Llama family with a language model's head, as transformers' LlamaForCausalLM,
// MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>

#include "models/llama_config.h"
#include "models/model.h"

namespace ullage::models {

class Llama;       // embeddings, layers, norm; in llama.cc
struct LlamaHead;  // lm_head

// Modules and parameters have the names that transformers gives them, in its order; a tied head is
// the embedding's tensor under a second name. Parameters are made uninitialised, fp32, on the given
// device; Module::to() changes their dtype, and forward computes in whatever dtype they have by
// then, but for the rotary angles, norms, softmax and loss, which are fp32 inside.
//
// Of a Batch are read: `input_ids` [B, S] int64 or int32, below vocab_size; `labels` [B, S], that
// of a token in the token's own place: it is predicted by the token before, so the first token's in
// each row does not count, and where documents are packed that of each document's first token must
// be -100. `position_ids` [B, S] (undefined: 0 to S - 1 in each row) and `document_ids` [B, S]
// (undefined: each row is one document; a token sees only its own document). `attention_mask`
// [B, S] may mark padding at the end of rows, which changes nothing for the tokens before it; on
// the CPU padding elsewhere is refused (ConfigError), on other devices it is the caller's word.
// S is 1 to max_position_embeddings (else ConfigError). B may be 0.
class LlamaForCausalLm final : public torch::nn::Module {
 public:
  LlamaForCausalLm(const LlamaConfig& config, c10::Device device);

  // The last layer's output after the final norm [B * S, hidden_size].
  at::Tensor HiddenStates(const Batch& batch);
  // [B, S, vocab_size]
  at::Tensor Logits(const Batch& batch);
  // The sum over the labels that count; an fp32 scalar. The logits never exist as a whole.
  at::Tensor Loss(const Batch& batch);

  // Layers keep their input and run again in backward (activations/recompute.h). Off at first.
  void set_recompute(bool recompute);

 private:
  void CheckInputs(const Batch& batch) const;

  LlamaConfig config_;
  std::shared_ptr<Llama> model_;
  std::shared_ptr<LlamaHead> head_;
};

}  // namespace ullage::models
