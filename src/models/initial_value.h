// The values of parameters before any training, one tensor at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace ullage::models {

// Fills `out` (contiguous, floating point, on CPU) with draws from N(0, deviation^2) that depend on
// `seed`, `name` and the number of elements alone. They are drawn in fp32 and rounded to `out`'s
// dtype, so that a 16-bit weight is the rounding of its fp32 master.
void FillNormal(const std::string& name, std::uint64_t seed, double deviation, at::Tensor& out);

}  // namespace ullage::models
