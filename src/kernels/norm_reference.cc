#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/group_sums.h"

namespace ullage::kernels {
namespace reference {

void GroupSums(const float* x, int64_t groups, double* sums) {
  for (int64_t group = 0; group < groups; ++group, x += kGroup) {
    double lane[8] = {};
    for (int64_t i = 0; i < kGroup; ++i) {
      const double value = x[i];
      lane[i % 8] += value * value;
    }
    sums[group] =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
}

void AddSumOfSquares(const float* x, int64_t n, SquareSum& result) {
  AddGroups(&GroupSums, x, n, result);
}

}  // namespace reference

void AddGroups(GroupSumsFunction group_sums, const float* x, int64_t n, SquareSum& result) {
  constexpr int64_t kBatch = 32;  // groups; 8 KB of input
  double sums[kBatch];
  // No sum of 64 finite squares leaves the range of double, and no non-finite square is lost in
  // one: a group sum is finite exactly when all its elements are.
  const auto add = [&](const float* from, int64_t groups, int64_t first_index) {
    group_sums(from, groups, sums);
    for (int64_t group = 0; group < groups; ++group) {
      if (std::isfinite(sums[group])) [[likely]] {
        result.sum.Add(sums[group]);
        continue;
      }
      if (result.first_non_finite >= 0) continue;
      int64_t at = group * kGroup;
      while (std::isfinite(from[at])) ++at;
      result.first_non_finite = first_index + at;
    }
  };

  const int64_t whole_groups = n / kGroup;
  for (int64_t group = 0; group < whole_groups; group += kBatch) {
    add(x + group * kGroup, std::min(kBatch, whole_groups - group), group * kGroup);
  }
  const int64_t covered = whole_groups * kGroup;
  if (covered < n) {
    float last[kGroup] = {};
    std::memcpy(last, x + covered, static_cast<size_t>(n - covered) * sizeof(float));
    add(last, 1, covered);
  }
}

}  // namespace ullage::kernels
