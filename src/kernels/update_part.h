// One of many ranges that an optimizer updates together.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/weights.h"

namespace ullage::kernels {

// Owns nothing. `step` is an index into the steps that are given beside the parts.
struct UpdatePart {
  int step = 0;
  WeightRange weights;
  DType gradient_dtype = DType::kFloat32;
  const void* gradient = nullptr;
  float* first_moment = nullptr;   // AdamW's exp_avg, SGD's momentum buffer
  float* second_moment = nullptr;  // AdamW's exp_avg_sq
  int64_t n = 0;
};

}  // namespace ullage::kernels
