#include "torchx/norm_on_meta.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "torchx/stand_in.h"

namespace ullage::torchx {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RmsNormFunction final : public torch::autograd::Function<RmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& input,
                               at::IntArrayRef normalized_shape,
                               const std::optional<Tensor>& weight) {
    std::vector<std::int64_t> rows = input.sizes().vec();
    for (std::size_t i = rows.size() - normalized_shape.size(); i < rows.size(); ++i) rows[i] = 1;
    const Tensor out = at::empty_like(input, at::MemoryFormat::Contiguous);
    const Tensor deviations = at::empty(rows, input.options().dtype(at::kFloat));
    context->save_for_backward({input, weight.value_or(Tensor()), deviations});
    context->mark_non_differentiable({deviations});
    return {out, deviations};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor gradient = gradients[0].contiguous();
    variable_list results(3);
    results[0] = at::empty_like(saved[0], at::MemoryFormat::Contiguous);
    if (saved[1].defined()) results[2] = at::empty_like(saved[1]);
    return results;
  }
};

// As torch does where there is no kernel of its own.
std::tuple<Tensor, Tensor> FromOthers(const Tensor& input, at::IntArrayRef normalized_shape,
                                      const std::optional<Tensor>& weight,
                                      std::optional<double> epsilon) {
  std::vector<std::int64_t> dimensions;
  for (std::size_t i = 0; i < normalized_shape.size(); ++i) {
    dimensions.push_back(input.dim() - static_cast<std::int64_t>(i) - 1);
  }
  const bool is_narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  const Tensor wide = is_narrow ? input.to(at::kFloat) : input;
  const Tensor deviations =
      at::rsqrt(at::pow(wide, 2).mean(dimensions, /*keepdim=*/true).add_(epsilon.value_or(1e-7)));
  Tensor normed = wide.mul(deviations);
  if (weight && weight->defined()) normed = normed.mul(*weight);
  return {normed.type_as(input).contiguous(), deviations};
}

}  // namespace

std::tuple<Tensor, Tensor> RmsNormOnMeta(const Tensor& input, at::IntArrayRef normalized_shape,
                                         const std::optional<Tensor>& weight,
                                         std::optional<double> epsilon) {
  if (!ComputesOnCuda(input)) {
    return FromOthers(input, normalized_shape, weight, epsilon);
  }
  const variable_list results = RmsNormFunction::apply(input, normalized_shape, weight);
  return {results[0], results[1]};
}

}  // namespace ullage::torchx
