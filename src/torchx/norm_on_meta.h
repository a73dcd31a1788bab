// _fused_rms_norm on Meta, with the allocations of the kernels that would run.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace ullage::torchx {

// The operator of that name. On a CPU it is made of others; on CUDA it is one kernel that keeps its
// input and a reciprocal deviation for each row.
std::tuple<at::Tensor, at::Tensor> RmsNormOnMeta(const at::Tensor& input,
                                                 at::IntArrayRef normalized_shape,
                                                 const std::optional<at::Tensor>& weight,
                                                 std::optional<double> epsilon);

}  // namespace ullage::torchx
