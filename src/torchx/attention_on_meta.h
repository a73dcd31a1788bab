// scaled_dot_product_attention on Meta, with the allocations of the kernels that would run.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace ullage::torchx {

// The operator of that name.
//
// Note [Attention on Meta]
// torch's own choice for Meta is always the math path, which keeps the attention weights. Standing
// for the CPU, the CPU is asked here, about tensors without memory, so that the conditions stand in
// torch alone. Standing for CUDA, where torch asks the device, the order is the engine's (Note
// [Repeatable attention]): flash for 16 bit without a mask, else memory-efficient, in its
// repeatable form, with what these two allocate in torch 2.11.
at::Tensor AttentionOnMeta(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const std::optional<at::Tensor>& attn_mask, double dropout_p,
                           bool is_causal, std::optional<double> scale, bool enable_gqa);

}  // namespace ullage::torchx
