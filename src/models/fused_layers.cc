#include "models/fused_layers.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "kernels/device_layers.h"
#include "models/dropout.h"
#include "models/layers.h"
#include "torchx/device.h"
#include "torchx/dtype.h"
#include "torchx/interception.h"
#include "torchx/operator_watch.h"
#include "torchx/stand_in.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using kernels::ColumnSum;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::Matrix ShapeOf(const at::Tensor& x) {
  return {torchx::FromTorch(x.scalar_type()), x.size(0), x.size(1)};
}

void* StreamOf(const at::Tensor& x) {
  return torchx::Queue::OfOperators(x.device()).stream();
}

at::Tensor Floats(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

struct Normed {
  at::Tensor out, sum, mean, rstd;
};

// kernels/add_norm.h. The sum takes the place of `in`.
Normed AddNorm(const at::Tensor& in, const at::Tensor& residual, const at::Tensor& gamma,
               const at::Tensor& beta, double epsilon, const Drop& drop) {
  Normed normed{at::empty_like(in), in, Floats(in, {in.size(0)}), Floats(in, {in.size(0)})};
  if (in.is_meta()) {
    torchx::NoteKernel({in, residual, normed.sum, normed.out});
    return normed;
  }
  const torchx::ReadingScope reading({gamma, beta});
  const kernels::AddNormArrays arrays = {in.const_data_ptr(),
                                         residual.const_data_ptr(),
                                         gamma.const_data_ptr(),
                                         beta.const_data_ptr(),
                                         normed.sum.mutable_data_ptr(),
                                         normed.out.mutable_data_ptr(),
                                         normed.mean.mutable_data_ptr<float>(),
                                         normed.rstd.mutable_data_ptr<float>()};
  if (in.is_cuda()) {
    kernels::device::AddNorm(ShapeOf(in), arrays, epsilon, drop.Key(), StreamOf(in));
  } else {
    kernels::reference::AddNorm(ShapeOf(in), arrays, epsilon, drop.Key());
  }
  return normed;
}

struct NormGradients {
  at::Tensor residual, in;
  at::Tensor partials;  // of gamma, beta and the bias before
};

NormGradients AddNormGradient(const at::Tensor& gradient, const Normed& normed,
                              const at::Tensor& gamma, const Drop& drop) {
  const kernels::Matrix shape = ShapeOf(gradient);
  NormGradients result{at::empty_like(gradient), at::empty_like(gradient),
                       Floats(gradient, {kernels::PartialRows(shape.rows), 3, shape.width})};
  if (gradient.is_meta()) {
    torchx::NoteKernel({gradient, normed.sum, result.residual, result.in, result.partials});
    return result;
  }
  const torchx::ReadingScope reading({gamma});
  const kernels::AddNormGradientArrays arrays = {gradient.const_data_ptr(),
                                                 normed.sum.const_data_ptr(),
                                                 normed.mean.const_data_ptr<float>(),
                                                 normed.rstd.const_data_ptr<float>(),
                                                 gamma.const_data_ptr(),
                                                 result.residual.mutable_data_ptr(),
                                                 result.in.mutable_data_ptr(),
                                                 result.partials.mutable_data_ptr<float>()};
  if (gradient.is_cuda()) {
    kernels::device::AddNormGradient(shape, arrays, drop.Key(), StreamOf(gradient));
  } else {
    kernels::reference::AddNormGradient(shape, arrays, drop.Key());
  }
  return result;
}

// Turns d(loss)/d(gelu(x)) into d(loss)/d(x); returns partial sums of its columns.
at::Tensor GeluGradient(const at::Tensor& x, at::Tensor& gradient) {
  const kernels::Matrix shape = ShapeOf(gradient);
  at::Tensor partials = Floats(gradient, {kernels::PartialRows(shape.rows), shape.width});
  if (gradient.is_meta()) {
    torchx::NoteKernel({x, gradient, gradient, partials});
    return partials;
  }
  const kernels::GeluGradientArrays arrays = {gradient.const_data_ptr(), x.const_data_ptr(),
                                              gradient.mutable_data_ptr(),
                                              partials.mutable_data_ptr<float>()};
  if (gradient.is_cuda()) {
    kernels::device::GeluGradient(shape, arrays, StreamOf(gradient));
  } else {
    kernels::reference::GeluGradient(shape, arrays);
  }
  return partials;
}

// Partial sums of columns, finished together.
class ColumnSums {
 public:
  // Of `part` of `parts` in each row of partials [rows, parts, width], of the type of `like`.
  at::Tensor Add(const at::Tensor& partials, std::int64_t part, std::int64_t parts,
                 const at::Tensor& like) {
    const std::int64_t stride = partials.numel() / partials.size(0);
    const std::int64_t width = stride / parts;
    at::Tensor out = at::empty({width}, like.options());
    if (out.is_meta()) return out;
    sums_.push_back({partials.const_data_ptr<float>() + part * width, partials.size(0), stride,
                     torchx::FromTorch(like.scalar_type()), out.mutable_data_ptr(), width});
    return out;
  }
  void Finish(const at::Tensor& like) const {
    if (like.is_meta()) return torchx::NoteKernel({});
    if (like.is_cuda()) {
      kernels::device::FinishColumnSums(sums_, StreamOf(like));
    } else {
      kernels::reference::FinishColumnSums(sums_);
    }
  }

 private:
  std::vector<ColumnSum> sums_;
};

void RefuseSecondDerivative() {
  if (!at::GradMode::is_enabled()) return;
  throw UnsupportedError("a second derivative through a fused layer",
                         "make the model compute it in fp32 on the CPU");
}

class DenseAddNormFunction final : public torch::autograd::Function<DenseAddNormFunction> {
 public:
  enum Input { kX, kResidual, kWeight, kBias, kGamma, kBeta, kInputs };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& gamma, const at::Tensor& beta,
                            double epsilon, double p) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const Drop drop(p);
    const Normed normed =
        AddNorm(at::linear(x, weight, bias), residual.contiguous(), gamma, beta, epsilon, drop);
    context->save_for_backward({x, weight, gamma, normed.sum, normed.mean, normed.rstd});
    drop.Save(*context);
    return normed.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    RefuseSecondDerivative();
    const variable_list saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor &x = saved[0], &weight = saved[1], &gamma = saved[2];
    const Normed normed{{}, saved[3], saved[4], saved[5]};
    const NormGradients norm =
        AddNormGradient(gradients[0].contiguous(), normed, gamma, Drop(*context));
    variable_list results(kInputs + 2);
    results[kResidual] = norm.residual;
    if (context->needs_input_grad(kX)) results[kX] = at::mm(norm.in, weight);
    if (context->needs_input_grad(kWeight)) results[kWeight] = at::mm(norm.in.t(), x);
    ColumnSums sums;
    if (context->needs_input_grad(kGamma)) results[kGamma] = sums.Add(norm.partials, 0, 3, gamma);
    if (context->needs_input_grad(kBeta)) results[kBeta] = sums.Add(norm.partials, 1, 3, gamma);
    if (context->needs_input_grad(kBias)) results[kBias] = sums.Add(norm.partials, 2, 3, gamma);
    sums.Finish(norm.in);
    return results;
  }
};

class FeedForwardFunction final : public torch::autograd::Function<FeedForwardFunction> {
 public:
  enum Input { kX, kUpWeight, kUpBias, kDownWeight, kDownBias, kGamma, kBeta, kInputs };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& up_weight, const at::Tensor& up_bias,
                            const at::Tensor& down_weight, const at::Tensor& down_bias,
                            const at::Tensor& gamma, const at::Tensor& beta, double epsilon,
                            double p) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const Drop drop(p);
    const at::Tensor input = x.contiguous();
    const at::Tensor before = at::linear(input, up_weight, up_bias);
    const at::Tensor inner = at::gelu(before);
    const Normed normed =
        AddNorm(at::linear(inner, down_weight, down_bias), input, gamma, beta, epsilon, drop);
    context->save_for_backward({input, before, inner, up_weight, down_weight, gamma, normed.sum,
                                normed.mean, normed.rstd});
    drop.Save(*context);
    return normed.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    RefuseSecondDerivative();
    const variable_list saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor &x = saved[0], &before = saved[1], &inner = saved[2];
    const at::Tensor &up_weight = saved[3], &down_weight = saved[4], &gamma = saved[5];
    const Normed normed{{}, saved[6], saved[7], saved[8]};
    NormGradients norm = AddNormGradient(gradients[0].contiguous(), normed, gamma, Drop(*context));
    variable_list results(kInputs + 2);
    ColumnSums sums;
    if (context->needs_input_grad(kGamma)) results[kGamma] = sums.Add(norm.partials, 0, 3, gamma);
    if (context->needs_input_grad(kBeta)) results[kBeta] = sums.Add(norm.partials, 1, 3, gamma);
    if (context->needs_input_grad(kDownBias)) {
      results[kDownBias] = sums.Add(norm.partials, 2, 3, gamma);
    }
    if (context->needs_input_grad(kDownWeight)) {
      results[kDownWeight] = at::mm(norm.in.t(), inner);
    }
    at::Tensor gradient = at::mm(norm.in, down_weight);
    norm.in = at::Tensor();
    const at::Tensor partials = GeluGradient(before, gradient);
    if (context->needs_input_grad(kUpBias)) results[kUpBias] = sums.Add(partials, 0, 1, gamma);
    sums.Finish(gradient);
    if (context->needs_input_grad(kUpWeight)) results[kUpWeight] = at::mm(gradient.t(), x);
    if (context->needs_input_grad(kX)) {
      results[kX] = norm.residual.addmm_(gradient, up_weight);
    }
    return results;
  }
};

}  // namespace

bool ShouldFuse(const at::Tensor& x, std::int64_t inner) {
  if (!torchx::ComputesOnCuda(x) || x.dim() != 2 || x.size(0) == 0) return false;
  const DType dtype = torchx::FromTorch(x.scalar_type());
  return kernels::AddNormTakes(dtype, x.size(1)) && inner * ElementBytes(dtype) % 16 == 0;
}

at::Tensor DenseAddNorm(const at::Tensor& x, const Linear& map, const at::Tensor& residual,
                        const LayerNorm& norm, double dropout) {
  return DenseAddNormFunction::apply(x, residual, map.weight, map.bias, norm.weight, norm.bias,
                                     norm.epsilon(), dropout);
}

at::Tensor FeedForward(const at::Tensor& x, const Linear& up, const Linear& down,
                       const LayerNorm& norm, double dropout) {
  return FeedForwardFunction::apply(x, up.weight, up.bias, down.weight, down.bias, norm.weight,
                                    norm.bias, norm.epsilon(), dropout);
}

std::vector<at::Tensor> BiasGradients(const std::vector<at::Tensor>& gradients) {
  const at::Tensor& first = gradients.front();
  const kernels::Matrix shape = ShapeOf(first);
  const std::int64_t rows = kernels::PartialRows(shape.rows);
  const at::Tensor partials =
      Floats(first, {static_cast<std::int64_t>(gradients.size()), rows, shape.width});
  std::vector<const void*> matrices;
  if (first.is_meta()) {
    for (const at::Tensor& gradient : gradients) torchx::NoteKernel({gradient, partials});
  } else {
    for (const at::Tensor& gradient : gradients) matrices.push_back(gradient.const_data_ptr());
  }
  if (first.is_cuda()) {
    kernels::device::PartialColumnSums(shape, matrices, partials.mutable_data_ptr<float>(),
                                       StreamOf(first));
  }
  ColumnSums sums;
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor own = partials.select(0, static_cast<std::int64_t>(i));
    if (first.is_cpu()) {
      kernels::reference::PartialColumnSums(shape, matrices[i], own.mutable_data_ptr<float>());
    }
    results.push_back(sums.Add(own, 0, 1, first));
  }
  sums.Finish(first);
  return results;
}

bool ShouldFuseBiasGradients(const std::vector<at::Tensor>& gradients) {
  constexpr std::size_t kMost = 4;
  if (gradients.empty() || gradients.size() > kMost) return false;
  const at::Tensor& first = gradients.front();
  for (const at::Tensor& gradient : gradients) {
    if (!torchx::ComputesOnCuda(gradient) || !gradient.is_contiguous() ||
        gradient.sizes() != first.sizes() || gradient.scalar_type() != first.scalar_type() ||
        (!gradient.is_meta() &&
         reinterpret_cast<std::uintptr_t>(gradient.const_data_ptr()) % 16 != 0)) {
      return false;
    }
  }
  return first.size(0) > 0 && first.size(1) * first.element_size() % 16 == 0;
}

}  // namespace ullage::models
