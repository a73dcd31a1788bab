// The gate of a gated MLP.
#pragma once

#include <ATen/core/Tensor.h>

namespace ullage::models {

// silu(gate) * up, elementwise; same shape and dtype. Keeps its two inputs for backward, where
// autograd alone would keep silu(gate) as well.
at::Tensor GatedSilu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace ullage::models
