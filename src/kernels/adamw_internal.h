// What the vector and the plain form of AdamW share. Internal to the room.
#pragma once

#include <cstdint>

#include "kernels/adamw.h"

namespace ullage::kernels {

enum class Decay { kNone, kDecoupled, kL2 };

// An AdamWStep ready for the loop.
struct AdamWFactors {
  AdamWFactors() = default;                      // not to be used before it is assigned to
  explicit AdamWFactors(const AdamWStep& step);  // throws StateError when t < 1

  Decay decay;
  float decay_factor;  // weight_decay (L2) or -(lr * weight_decay) (decoupled)
  float gradient_factor;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float step_size;         // lr / (1 - beta1^t)
  float sqrt_correction2;  // sqrt(1 - beta2^t)
};

struct AdamWArrays {
  WeightRange weights;
  DType gradient_dtype;
  const void* gradient;
  float* exp_avg;
  float* exp_avg_sq;
};

namespace reference {
void AdamWRange(const AdamWFactors& factors, const AdamWArrays& arrays, int64_t begin, int64_t end);
}  // namespace reference

}  // namespace ullage::kernels
