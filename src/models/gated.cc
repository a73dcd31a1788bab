#include "models/gated.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ullage::models {
namespace {

class GatedSiluFunction final : public torch::autograd::Function<GatedSiluFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const at::Tensor up_gradient = at::silu(gate).mul_(gradients[0]);
    return {at::silu_backward(at::mul(gradients[0], up), gate), up_gradient};
  }
};

}  // namespace

at::Tensor GatedSilu(const at::Tensor& gate, const at::Tensor& up) {
  return GatedSiluFunction::apply(gate, up);
}

}  // namespace ullage::models
