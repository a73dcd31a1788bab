// Dropout whose mask is a seed: nothing but 8 bytes is kept for backward.
// Why it differs from torch's: Note [Dropout from a counter] in dropout_mask.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ullage::models {

// A seed for one use of dropout, drawn from torch's default CPU generator: at::manual_seed and
// whoever saves and restores that generator decide the mask. Locks the generator.
std::uint64_t DrawDropoutSeed();

// `output` = `input` with each element set to zero or multiplied by 1 / (1 - p), by `seed` and the
// element's index in row-major order. Same shape and dtype, both contiguous, on CPU, CUDA (the same
// bits) or Meta (where nothing is done); `output` may be `input`. Autograd does not see it.
void ApplyDropoutMask(const at::Tensor& input, std::uint64_t seed, double p, at::Tensor& output);

// Differentiable dropout, 0 <= p < 1. Returns `x` itself when p is 0.
at::Tensor Dropout(const at::Tensor& x, double p);

}  // namespace ullage::models
