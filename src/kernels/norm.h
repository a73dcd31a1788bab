// The sum of squares behind the gradient norm.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/exact_sum.h"

namespace ullage::kernels {

struct SquareSum {
  ExactSum sum;                   // over the groups of 64 that hold finite values only
  int64_t first_non_finite = -1;  // -1: none
};

// Adds x[0]^2 + ... + x[n-1]^2 to `result.sum`. The squares of each group of 64 elements are
// summed in double in one fixed order, absent elements of the last group counting as zeros, and
// the group sums exactly. So if `x` starts at a multiple of 64 elements of its parameter, the
// total does not depend on how parameters are divided at multiples of 64, nor on the CPU. 16-bit
// elements count as the fp32 values that they are. `x` is aligned to its elements.
// When an element is infinite or NaN, its index in `x` is put into first_non_finite, unless a
// non-finite element had been found before; its whole group is left out of the sum. One thread.
void AddSumOfSquares(DType dtype, const void* x, int64_t n, SquareSum& result);

namespace reference {
void AddSumOfSquares(DType dtype, const void* x, int64_t n, SquareSum& result);
}  // namespace reference

}  // namespace ullage::kernels
