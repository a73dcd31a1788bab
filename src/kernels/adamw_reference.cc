#include <cmath>

#include <fmt/format.h>

#include "kernels/adamw_internal.h"
#include "kernels/scalar_master.h"
#include "ullage/error.h"

namespace ullage::kernels {

AdamWFactors::AdamWFactors(const AdamWStep& step)
    : decay(step.weight_decay == 0 ? Decay::kNone
            : step.decoupled       ? Decay::kDecoupled
                                   : Decay::kL2),
      decay_factor(
          static_cast<float>(step.decoupled ? -(step.lr * step.weight_decay) : step.weight_decay)),
      gradient_factor(step.gradient_factor),
      beta1(static_cast<float>(step.beta1)),
      one_minus_beta1(static_cast<float>(1 - step.beta1)),
      beta2(static_cast<float>(step.beta2)),
      one_minus_beta2(static_cast<float>(1 - step.beta2)),
      eps(static_cast<float>(step.eps)),
      step_size(static_cast<float>(step.lr)),
      sqrt_correction2(1) {
  if (step.t < 1) {
    throw StateError(fmt::format("AdamW was asked for step t = {}", step.t),
                     "count the steps from 1: t is the number of this update");
  }
  if (!step.bias_correction) return;
  const auto t = static_cast<double>(step.t);
  step_size = static_cast<float>(step.lr / (1 - std::pow(step.beta1, t)));
  sqrt_correction2 = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, t)));
}

namespace reference {

void AdamWRange(const AdamWFactors& factors, const AdamWArrays& arrays, int64_t begin,
                int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    float p = LoadMasterAt(arrays.weights, i);
    float m = arrays.exp_avg[i];
    float v = arrays.exp_avg_sq[i];
    float g = factors.gradient_factor * LoadFloat(arrays.gradient_dtype, arrays.gradient, i);
    if (factors.decay == Decay::kL2) g = std::fma(factors.decay_factor, p, g);
    m = std::fma(factors.beta1, m, factors.one_minus_beta1 * g);
    v = std::fma(factors.beta2, v, (factors.one_minus_beta2 * g) * g);
    if (factors.decay == Decay::kDecoupled) p = std::fma(factors.decay_factor, p, p);
    const float divisor = std::sqrt(v) / factors.sqrt_correction2 + factors.eps;
    p = p - (factors.step_size * m) / divisor;
    arrays.exp_avg[i] = m;
    arrays.exp_avg_sq[i] = v;
    StoreMasterAt(arrays.weights, i, p);
  }
}

void AdamW(const AdamWStep& step, const WeightRange& weights, DType gradient_dtype,
           const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t n) {
  AdamWRange(AdamWFactors(step), {weights, gradient_dtype, gradient, exp_avg, exp_avg_sq}, 0, n);
}

}  // namespace reference
}  // namespace ullage::kernels
