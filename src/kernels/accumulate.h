// Summing gradients: contributions of other ranks and of later uses.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ullage::kernels {

// sum[i] = sum[i] + float(in[i]) in fp32, for 0 <= i < n. `in` need not be aligned, not even to
// its element; it must not overlap `sum`. One thread.
void AddToFloat(DType dtype, const void* in, float* sum, int64_t n);

// sum[i] = 0 + float(in[i]): the first contribution, without the zeros that it would be added to.
// It does not read `sum`, and writes past the caches where that is aligned to 64 bytes. One thread.
void SetFloat(DType dtype, const void* in, float* sum, int64_t n);

// sum[i] = round(float(sum[i]) + float(in[i])), both of `dtype`: what torch does when a parameter
// receives two 16-bit gradients. With fp32 it is a plain addition. `sum` and `in` may be the same
// array but not overlap otherwise. One thread.
void AddTo16(DType dtype, void* sum, const void* in, int64_t n);

namespace reference {
void SetFloat(DType dtype, const void* in, float* sum, int64_t n);
void AddToFloat(DType dtype, const void* in, float* sum, int64_t n);
void AddTo16(DType dtype, void* sum, const void* in, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
