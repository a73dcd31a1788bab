#include <cmath>

#include <fmt/format.h>

#include "kernels/scalar_master.h"
#include "kernels/sgd_internal.h"
#include "ullage/error.h"

namespace ullage::kernels {

SgdFactors::SgdFactors(const SgdStep& step)
    : kind(step.momentum == 0 ? Momentum::kNone
           : step.t == 1      ? Momentum::kFirstStep
                              : Momentum::kLaterStep),
      decay(step.weight_decay != 0),
      nesterov(step.nesterov),
      gradient_factor(step.gradient_factor),
      weight_decay(static_cast<float>(step.weight_decay)),
      momentum(static_cast<float>(step.momentum)),
      one_minus_dampening(static_cast<float>(1 - step.dampening)),
      minus_lr(static_cast<float>(-step.lr)) {
  if (step.t < 1) {
    throw StateError(fmt::format("SGD was asked for step t = {}", step.t),
                     "count the steps from 1: t is the number of this update");
  }
}

namespace reference {

void SgdRange(const SgdFactors& factors, const SgdArrays& arrays, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    float p = LoadMasterAt(arrays.weights, i);
    float g = factors.gradient_factor * LoadFloat(arrays.gradient_dtype, arrays.gradient, i);
    if (factors.decay) g = std::fma(factors.weight_decay, p, g);
    if (factors.kind != Momentum::kNone) {
      float b = g;
      if (factors.kind == Momentum::kLaterStep) {
        b = std::fma(factors.momentum, arrays.momentum_buffer[i], factors.one_minus_dampening * g);
      }
      arrays.momentum_buffer[i] = b;
      g = factors.nesterov ? std::fma(factors.momentum, b, g) : b;
    }
    p = std::fma(factors.minus_lr, g, p);
    StoreMasterAt(arrays.weights, i, p);
  }
}

void Sgd(const SgdStep& step, const WeightRange& weights, DType gradient_dtype,
         const void* gradient, float* momentum_buffer, int64_t n) {
  SgdRange(SgdFactors(step), {weights, gradient_dtype, gradient, momentum_buffer}, 0, n);
}

}  // namespace reference
}  // namespace ullage::kernels
