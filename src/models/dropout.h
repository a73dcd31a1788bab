// Dropout whose mask is a seed: nothing but 8 bytes is kept for backward.
// Why it differs from torch's: Note [Dropout from a counter] in dropout_mask.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/dropout_hash.h"
#include "torchx/random.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace ullage::models {

// One use of dropout: what its gradient needs to know.
struct Drop {
  // Draws a seed when p > 0.
  explicit Drop(double probability)
      : p(probability), seed(p > 0 ? torchx::DrawSeed() : torchx::Seed()) {}
  // As Save left it.
  explicit Drop(torch::autograd::AutogradContext& context);
  void Save(torch::autograd::AutogradContext& context) const;

  kernels::DropoutKey Key() const;

  const double p;
  const torchx::Seed seed;
};

// `output` = `input` with each element set to zero or multiplied by 1 / (1 - p), by the seed and
// the element's index in row-major order. Same shape and dtype, both contiguous, on CPU, CUDA (the
// same bits) or Meta (where nothing is done); `output` may be `input`. Autograd does not see it.
void ApplyDropoutMask(const at::Tensor& input, const Drop& drop, at::Tensor& output);

// Differentiable dropout, 0 <= p < 1. Returns `x` itself when p is 0.
at::Tensor Dropout(const at::Tensor& x, double p);

}  // namespace ullage::models
