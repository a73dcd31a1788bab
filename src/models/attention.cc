#include "models/attention.h"

#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>

#include "models/dropout.h"
#include "torchx/stand_in.h"

namespace ullage::models {
namespace {

// scale * a b, over a batch of matrices.
at::Tensor ScaledProduct(const at::Tensor& a, const at::Tensor& b, double scale) {
  return at::baddbmm(at::empty({1, 1, 1}, a.options()), a, b, /*beta=*/0, /*alpha=*/scale);
}

at::Tensor Dropped(const at::Tensor& weights, const Drop& drop) {
  at::Tensor dropped = at::empty_like(weights);
  ApplyDropoutMask(weights, drop, dropped);
  return dropped;
}

// Everything three-dimensional, heads in the batch: query [n, queries, size], key and value
// [n, keys, size], bias [n, 1, keys]. Keeps q, k, v and the attention weights before dropout; what
// dropout made of them is computed again in backward.
class DropoutAttention final : public torch::autograd::Function<DropoutAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& bias, double p) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(query.size(2)));
    const Drop drop(p);
    const at::Tensor transposed = key.transpose(1, 2);
    at::Tensor scores = bias.has_value()
                            ? at::baddbmm(*bias, query, transposed, /*beta=*/1, /*alpha=*/scale)
                            : ScaledProduct(query, transposed, scale);
    const at::Tensor weights = at::_softmax(scores, -1, /*half_to_float=*/false);
    ApplyDropoutMask(weights, drop, scores);
    context->save_for_backward({query, key, value, weights});
    drop.Save(*context);
    context->saved_data["scale"] = scale;
    return at::bmm(scores, value);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2], &weights = saved[3];
    const Drop drop(*context);
    const double scale = context->saved_data["scale"].toDouble();
    const at::Tensor& gradient = gradients[0];

    const at::Tensor value_gradient = at::bmm(Dropped(weights, drop).transpose(1, 2), gradient);
    at::Tensor weights_gradient = at::bmm(gradient, value.transpose(1, 2));
    ApplyDropoutMask(weights_gradient, drop, weights_gradient);
    const at::Tensor scores_gradient =
        at::_softmax_backward_data(weights_gradient, weights, -1, weights.scalar_type());
    return {ScaledProduct(scores_gradient, key, scale),
            ScaledProduct(scores_gradient.transpose(1, 2), query, scale), value_gradient,
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor SelfAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& bias, std::int64_t heads, double dropout) {
  const std::int64_t batch = query.size(0), queries = query.size(1), keys = key.size(1);
  const std::int64_t width = query.size(2), size = width / heads;
  const auto split = [&](const at::Tensor& x) {
    return x.view({batch, x.size(1), heads, size}).transpose(1, 2);
  };
  at::Tensor output;  // [batch, heads, queries, size]
  if (dropout > 0 && torchx::ComputesOnCpu(query.device())) {
    const auto flat = [&](const at::Tensor& x) {
      return split(x).reshape({batch * heads, x.size(1), size});
    };
    std::optional<at::Tensor> flat_bias;
    if (bias.defined()) {
      flat_bias = bias.expand({batch, heads, keys}).reshape({batch * heads, 1, keys});
    }
    output = DropoutAttention::apply(flat(query), flat(key), flat(value), flat_bias, dropout)
                 .view({batch, heads, queries, size});
  } else {
    std::optional<at::Tensor> mask;
    if (bias.defined()) mask = bias.unsqueeze(1);
    output =
        at::scaled_dot_product_attention(split(query), split(key), split(value), mask, dropout);
  }
  return output.transpose(1, 2).reshape({batch, queries, width});
}

}  // namespace ullage::models
