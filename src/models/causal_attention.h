// Self-attention of a decoder: each token sees itself and what stands before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ullage::models {

// What is added to attention scores [1 or B, 1, S, S]: 0 where a token may see another, minus
// infinity where not, in `dtype`. Undefined where the order of tokens alone decides.
//
// A token sees the `window` last tokens, itself included (0: all before it), and among them those
// of its own document: `document_ids` [B, S], any integers, or undefined.
at::Tensor CausalBias(std::int64_t length, std::int64_t window, const at::Tensor& document_ids,
                      c10::Device device, at::ScalarType dtype);

// `query` [B, S, heads, width], `key` [B, S, key heads, width], `value` [B, S, key heads, size]
// with size <= width; the heads in excess of `size` elements are zero in query and key. Scores are
// divided by sqrt(size). `bias` as CausalBias gives it. `dropout`: share of the attention weights
// set to zero, 0 when evaluating. Returns [B, S, heads * size].
//
// Without a bias torch's own causal kernels do the work, so no scores are kept.
at::Tensor CausalAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& bias, double dropout);

// The width that heads of `size` elements should have for the kernels of `device`: cuDNN and
// memory-efficient attention, which are repeatable, want multiples of 8.
std::int64_t AttentionWidth(std::int64_t size, c10::Device device);

}  // namespace ullage::models
