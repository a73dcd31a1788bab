#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/group_sums.h"
#include "kernels/scalar_cast.h"

namespace ullage::kernels {
namespace reference {

void GroupSums(DType dtype, const void* x, int64_t groups, double* sums) {
  for (int64_t group = 0; group < groups; ++group) {
    double lane[8] = {};
    for (int64_t i = 0; i < kGroup; ++i) {
      const double value = LoadFloat(dtype, x, group * kGroup + i);
      lane[i % 8] += value * value;
    }
    sums[group] =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
}

void AddSumOfSquares(DType dtype, const void* x, int64_t n, SquareSum& result) {
  AddGroups(&GroupSums, dtype, x, n, result);
}

}  // namespace reference

void AddGroups(GroupSumsFunction group_sums, DType dtype, const void* x, int64_t n,
               SquareSum& result) {
  constexpr int64_t kBatch = 32;  // groups; 8 KB of input in fp32
  double sums[kBatch];
  // No sum of 64 finite squares leaves the range of double, and no non-finite square is lost in
  // one: a group sum is finite exactly when all its elements are.
  const auto add = [&](const void* from, int64_t groups, int64_t first_index) {
    group_sums(dtype, from, groups, sums);
    for (int64_t group = 0; group < groups; ++group) {
      if (std::isfinite(sums[group])) [[likely]] {
        result.sum.Add(sums[group]);
        continue;
      }
      if (result.first_non_finite >= 0) continue;
      int64_t at = group * kGroup;
      while (std::isfinite(LoadFloat(dtype, from, at))) ++at;
      result.first_non_finite = first_index + at;
    }
  };

  const int64_t whole_groups = n / kGroup;
  for (int64_t group = 0; group < whole_groups; group += kBatch) {
    const int64_t first = group * kGroup;
    add(At(dtype, x, first), std::min(kBatch, whole_groups - group), first);
  }
  const int64_t covered = whole_groups * kGroup;
  if (covered < n) {
    float last[kGroup] = {};  // room for 64 of any type; all of them have an all-zeros zero
    std::memcpy(last, At(dtype, x, covered),
                static_cast<size_t>((n - covered) * ElementBytes(dtype)));
    add(last, 1, covered);
  }
}

}  // namespace ullage::kernels
