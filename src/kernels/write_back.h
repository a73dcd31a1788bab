// Carrying a user's write to a 16-bit weight over to its fp32 master.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ullage::kernels {

// For every i in [0, n) where master[i] rounded to `weight_dtype` is not weight[i], bit for bit
// (so +0 is not -0, but any NaN equals any NaN), sets master[i] to weight[i]. The others keep the
// digits that the weight has no room for. Returns how many were set. The arrays must not overlap;
// 64-byte alignment is fastest. One thread.
int64_t AdoptWrites(DType weight_dtype, const void* weight, float* master, int64_t n);

namespace reference {
int64_t AdoptWrites(DType weight_dtype, const void* weight, float* master, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
