// Sums of squares of groups of 64, the inner part of AddSumOfSquares. Internal to the room.
#pragma once

#include <cstdint>

#include "kernels/norm.h"

namespace ullage::kernels {

inline constexpr int64_t kGroup = 64;

// sums[g] = the sum of the squares of x[64 g] to x[64 g + 63], for 0 <= g < groups, where x holds
// elements of `dtype`, which fp32 and double hold exactly. Element j of a group belongs to lane
// j % 8; each lane adds its squares in order, and the lanes are added as
// ((0+4)+(2+6)) + ((1+5)+(3+7)). The square of a float is exact in double, so it makes no
// difference whether multiplication and addition are fused.
using GroupSumsFunction = void (*)(DType dtype, const void* x, int64_t groups, double* sums);

namespace reference {
void GroupSums(DType dtype, const void* x, int64_t groups, double* sums);
}  // namespace reference

// AddSumOfSquares over either GroupSums.
void AddGroups(GroupSumsFunction group_sums, DType dtype, const void* x, int64_t n,
               SquareSum& result);

}  // namespace ullage::kernels
