// Adam and AdamW over a range of one parameter slice, in one pass over the state.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/weights.h"

namespace ullage::kernels {

// One optimizer step of one hyper-parameter group.
struct AdamWStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; false adds weight_decay * p to the gradient (L2)
  bool bias_correction = true;
  int64_t t = 1;              // 1 at the first step
  float gradient_factor = 1;  // multiplies the gradient: unscale, mean and clip in one
};

// For 0 <= i < n, in fp32, with g = gradient_factor * gradient[i]:
//   g = fma(weight_decay, p, g)                                     (L2)
//   m = fma(beta1, m, (1 - beta1) * g)
//   v = fma(beta2, v, ((1 - beta2) * g) * g)
//   p = fma(-(lr * weight_decay), p, p)                             (decoupled)
//   p = p - (lr / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// where p is the master of weight i and m, v are exp_avg[i], exp_avg_sq[i]; division and square
// root are IEEE's. What depends on the step alone is computed once, in double, and rounded to fp32.
// Without bias correction both divisors are 1; with weight_decay 0 the decay lines are left out.
//
// Weight and extension are read and written in the same pass: LoadMaster, the update, StoreMaster.
// The arrays must not overlap; 64-byte alignment is fastest. One thread: split ranges anywhere, the
// result does not depend on it. Throws StateError when t < 1.
void AdamW(const AdamWStep& step, const WeightRange& weights, DType gradient_dtype,
           const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t n);

namespace reference {
void AdamW(const AdamWStep& step, const WeightRange& weights, DType gradient_dtype,
           const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
