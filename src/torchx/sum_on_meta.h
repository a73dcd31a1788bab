// sum on Meta, with the allocations of the kernels that would run.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace ullage::torchx {

// sum.dim_IntList. CUDA's kernel splits a long sum over blocks and keeps their parts in memory for
// as long as it runs: sums over the rows of a gradient, which biases have, take megabytes.
at::Tensor SumOnMeta(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                     std::optional<at::ScalarType> dtype);

}  // namespace ullage::torchx
