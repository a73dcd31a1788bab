// Self-attention of an encoder: softmax(q k' / sqrt(head size) + bias) v, with dropout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ullage::models {

// `query` [batch, queries, width]; `key` and `value` [batch, keys, width]; the width is `heads`
// heads side by side. `bias` [batch, 1, keys], in their dtype, is added to the scores of every head
// and query (0 where a key may be seen, very negative where not); undefined: every key is seen.
// `dropout` is the share of attention weights set to zero, 0 when evaluating. Returns
// [batch, queries, width].
//
// Without dropout this is torch's scaled_dot_product_attention, whose CPU kernel keeps no weights
// at all. With dropout torch would keep three tensors of batch * heads * queries * keys; on CPU
// one is kept here.
at::Tensor SelfAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& bias, std::int64_t heads, double dropout);

}  // namespace ullage::models
