#include "models/projections.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "models/fused_layers.h"
#include "models/layers.h"

namespace ullage::models {
namespace {

using torch::autograd::variable_list;

class ProjectFunction final : public torch::autograd::Function<ProjectFunction> {
 public:
  // `biases` has one for each weight, or none at all.
  static variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                               at::TensorList weights, at::TensorList biases) {
    variable_list saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["has_bias"] = !biases.empty();
    variable_list results;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      results.push_back(at::linear(x, weights[i], biases.empty() ? at::Tensor() : biases[i]));
    }
    return results;
  }

  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::size_t count = gradients.size();
    const at::Tensor& x = saved[0];
    const bool has_bias = context->saved_data["has_bias"].toBool();
    variable_list results(1 + count + (has_bias ? count : 0));
    const bool fused = has_bias && ShouldFuseBiasGradients(gradients);
    const variable_list of_biases = fused ? BiasGradients(gradients) : variable_list();
    for (std::size_t i = 0; i < count; ++i) {
      const at::Tensor& gradient = gradients[i];
      if (context->needs_input_grad(0)) {
        const at::Tensor& weight = saved[1 + i];
        if (i == 0) {
          results[0] = at::mm(gradient, weight);
        } else {
          results[0].addmm_(gradient, weight);
        }
      }
      if (context->needs_input_grad(1 + i)) results[1 + i] = at::mm(gradient.t(), x);
      const std::size_t bias = 1 + count + i;
      if (bias < results.size() && context->needs_input_grad(bias)) {
        results[bias] = fused ? of_biases[i] : gradient.sum(0);
      }
    }
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> Project(const at::Tensor& x, const std::vector<const Linear*>& maps) {
  std::vector<at::Tensor> weights, biases;
  for (const Linear* map : maps) {
    weights.push_back(map->weight);
    if (map->bias.defined()) biases.push_back(map->bias);
  }
  return ProjectFunction::apply(x, at::TensorList(weights), at::TensorList(biases));
}

}  // namespace ullage::models
