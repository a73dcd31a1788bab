// Stochastic gradient descent with momentum over a range of one parameter slice.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/weights.h"

namespace ullage::kernels {

// One step of one hyper-parameter group; the meaning of each is that of torch.optim.SGD.
struct SgdStep {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // L2: weight_decay * p is added to the gradient
  bool nesterov = false;
  int64_t t = 1;              // 1 at the first step
  float gradient_factor = 1;  // multiplies the gradient: unscale, mean and clip in one
};

// For 0 <= i < n, in fp32, with g = gradient_factor * gradient[i]:
//   g = fma(weight_decay, p, g)                         (unless weight_decay is 0)
//   b = g at t = 1, later fma(momentum, b, (1 - dampening) * g)
//   g = nesterov ? fma(momentum, b, g) : b
//   p = fma(-lr, g, p)
// where p is the master of weight i and b is momentum_buffer[i]. With momentum 0 the two lines with
// b are left out and momentum_buffer, which may be null, is not touched. At t = 1 the old contents
// of momentum_buffer do not matter.
//
// Weight and extension are read and written in the same pass: LoadMaster, the update, StoreMaster.
// The arrays must not overlap; 64-byte alignment is fastest. One thread: split ranges anywhere, the
// result does not depend on it. Throws StateError when t < 1.
void Sgd(const SgdStep& step, const WeightRange& weights, DType gradient_dtype,
         const void* gradient, float* momentum_buffer, int64_t n);

namespace reference {
void Sgd(const SgdStep& step, const WeightRange& weights, DType gradient_dtype,
         const void* gradient, float* momentum_buffer, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
