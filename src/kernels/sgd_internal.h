// What the vector and the plain form of SGD share. Internal to the room.
#pragma once

#include <cstdint>

#include "kernels/sgd.h"

namespace ullage::kernels {

enum class Momentum { kNone, kFirstStep, kLaterStep };

// An SgdStep ready for the loop.
struct SgdFactors {
  SgdFactors() = default;                    // not to be used before it is assigned to
  explicit SgdFactors(const SgdStep& step);  // throws StateError when t < 1

  Momentum kind;
  bool decay;
  bool nesterov;
  float gradient_factor;
  float weight_decay;
  float momentum;
  float one_minus_dampening;
  float minus_lr;
};

struct SgdArrays {
  WeightRange weights;
  DType gradient_dtype;
  const void* gradient;
  float* momentum_buffer;  // may be null with Momentum::kNone
};

namespace reference {
void SgdRange(const SgdFactors& factors, const SgdArrays& arrays, int64_t begin, int64_t end);
}  // namespace reference

}  // namespace ullage::kernels
