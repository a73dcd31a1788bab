#include "models/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "torchx/stand_in.h"

namespace ullage::models {
namespace {

using torch::autograd::variable_list;

// What one pass over the rows yields.
struct Sums {
  at::Tensor losses;           // [rows] fp32
  at::Tensor hidden_gradient;  // [rows, width] in the dtype of `hidden`; undefined if not wanted
  at::Tensor weight_gradient;  // [vocabulary, width] fp32; undefined if not wanted
};

at::Tensor LogProbabilities(const at::Tensor& logits) {
  if (logits.scalar_type() == at::kFloat) return at::_log_softmax(logits, 1, false);
  // One kernel of CUDA's reads fp16 and writes fp32; there is none such for bf16 and on CPUs.
  if (torchx::ComputesOnCuda(logits) && logits.scalar_type() == at::kHalf) {
    return at::_log_softmax(logits, 1, /*half_to_float=*/true);
  }
  return at::_log_softmax(logits.to(at::kFloat), 1, false);
}

// `valid` [rows] in the dtype of `hidden`: 0 for rows to leave out; undefined: there are none.
// Targets of those are 0.
Sums Run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
         const at::Tensor& valid, std::int64_t chunk, bool wants_hidden, bool wants_weight) {
  const std::int64_t rows = hidden.size(0);
  Sums sums;
  sums.losses = at::empty({rows}, hidden.options().dtype(at::kFloat));
  if (wants_hidden) sums.hidden_gradient = at::empty_like(hidden, at::MemoryFormat::Contiguous);
  if (wants_weight) {
    sums.weight_gradient = at::zeros(weight.sizes(), hidden.options().dtype(at::kFloat));
  }
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t end = std::min(first + chunk, rows);
    const auto part = [&](const at::Tensor& tensor) { return tensor.slice(0, first, end); };
    const at::Tensor x = part(hidden);
    const at::Tensor target = part(targets).unsqueeze(1);
    at::Tensor logits = at::linear(x, weight);
    at::Tensor log_p = LogProbabilities(logits);
    const at::Tensor target_log_p = log_p.gather(1, target);
    at::Tensor losses = part(sums.losses);
    losses.copy_(target_log_p.squeeze(1));
    if (!wants_hidden && !wants_weight) continue;

    // d(loss) / d(logits) = p - (1 at the target), rounded once, in the place of the logits.
    const at::Tensor at_target = target_log_p.expm1();
    at::Tensor wide;  // the same in fp32, where the product with the weight's dtype needs it
    if (logits.scalar_type() == at::kFloat || torchx::ComputesOnCuda(logits)) {
      at::exp_out(logits, log_p);
      logits.scatter_(1, target, at_target.to(logits.scalar_type()));
    } else {
      wide = log_p.exp_().scatter_(1, target, at_target);
      logits.copy_(wide);
    }
    // What is left out is left out of the narrow factors of both products.
    const at::Tensor weights = valid.defined() ? part(valid).unsqueeze(1) : at::Tensor();
    if (wants_hidden) {
      at::Tensor gradient = part(sums.hidden_gradient);
      at::mm_out(gradient, logits, weight);
      if (weights.defined()) gradient.mul_(weights);
    }
    if (!wants_weight) continue;
    const at::Tensor kept = weights.defined() ? x * weights : x;
    if (wide.defined()) {
      sums.weight_gradient.addmm_(wide.t(), kept.to(at::kFloat));
    } else if (kept.scalar_type() == at::kFloat) {
      sums.weight_gradient.addmm_(logits.t(), kept);
    } else {  // CUDA adds 16-bit products up in fp32 without making them
      at::addmm_out(sums.weight_gradient, sums.weight_gradient, logits.t(), kept, at::kFloat);
    }
  }
  sums.losses.neg_();
  if (valid.defined()) sums.losses.mul_(valid);
  return sums;
}

Sums RunWithoutIgnored(const at::Tensor& hidden, const at::Tensor& weight,
                       const at::Tensor& targets, const LossHeadForm& form, bool wants_hidden,
                       bool wants_weight) {
  const at::Tensor seen = targets != kIgnoredLabel;
  // On Meta nothing is known about labels; most is held when none beside these is ignored.
  const std::int64_t most = std::max<std::int64_t>(0, seen.numel() - form.ignored_at_least);
  const at::Tensor rows =
      (seen.is_meta() ? at::empty({most, 1}, targets.options()) : seen.nonzero()).squeeze(1);
  if (rows.numel() == targets.numel()) {
    return Run(hidden, weight, targets, {}, form.chunk, wants_hidden, wants_weight);
  }
  Sums sums = Run(hidden.index_select(0, rows), weight, targets.index_select(0, rows), {},
                  form.chunk, wants_hidden, wants_weight);
  if (wants_hidden) {
    at::Tensor spread = at::zeros(hidden.sizes(), hidden.options());
    sums.hidden_gradient = spread.index_copy_(0, rows, sums.hidden_gradient);
  }
  return sums;
}

Sums RunWithAll(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                const LossHeadForm& form, bool wants_hidden, bool wants_weight) {
  const at::Tensor valid = targets.ne(kIgnoredLabel);
  return Run(hidden, weight, targets * valid, valid.to(hidden.scalar_type()), form.chunk,
             wants_hidden, wants_weight);
}

class LinearCrossEntropyFunction final
    : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            const LossHeadForm& form, bool wants_hidden, bool wants_weight) {
    const auto run = form.drops_ignored ? RunWithoutIgnored : RunWithAll;
    const Sums sums = run(hidden, weight, targets, form, wants_hidden, wants_weight);
    context->save_for_backward({sums.hidden_gradient, sums.weight_gradient});
    context->saved_data["dtype"] = hidden.scalar_type();
    return sums.losses.sum();
  }

  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto dtype = context->saved_data["dtype"].toScalarType();
    variable_list results(6);
    for (std::size_t i = 0; i < saved.size(); ++i) {
      if (!saved[i].defined()) continue;
      if (torchx::ComputesOnCpu(saved[i].device())) {
        // mul_out would make the wider product, too, where Meta could not tell.
        results[i] = (saved[i] * gradients[0]).to(dtype);
        continue;
      }
      results[i] = at::empty(saved[i].sizes(), saved[i].options().dtype(dtype));
      at::mul_out(results[i], saved[i], gradients[0]);
    }
    return results;
  }
};

}  // namespace

LossHeadForm FormOfLossHead(std::int64_t vocab_size, c10::Device device) {
  const bool is_small = torchx::ComputesOnCpu(device);
  const std::int64_t logits = std::int64_t{1} << (is_small ? 22 : 25);
  return {std::max<std::int64_t>(16, logits / vocab_size), is_small};
}

at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, LossHeadForm form) {
  const bool is_recorded = at::GradMode::is_enabled();
  return LinearCrossEntropyFunction::apply(hidden, weight, targets, form,
                                           is_recorded && hidden.requires_grad(),
                                           is_recorded && weight.requires_grad());
}

}  // namespace ullage::models
