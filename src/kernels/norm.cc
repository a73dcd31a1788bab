#include "kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/group_sums.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET || HWY_MAX_BYTES < 32

void GroupSums(const float* x, int64_t groups, double* sums) {
  reference::GroupSums(x, groups, sums);
}

#else

// Four lanes to a vector on every instruction set: two accumulators hold the eight lanes.
void GroupSums(const float* x, int64_t groups, double* sums) {
  const hn::FixedTag<double, 4> wide;
  const hn::FixedTag<float, 4> narrow;
  const hn::Half<decltype(wide)> half;
  for (int64_t group = 0; group < groups; ++group, x += kGroup) {
    auto low = hn::Zero(wide);   // lanes 0 to 3
    auto high = hn::Zero(wide);  // lanes 4 to 7
    for (int64_t i = 0; i < kGroup; i += 8) {
      if (i % 16 == 0) PrefetchAfter<DType::kFloat32>(x, i);
      const auto a = hn::PromoteTo(wide, hn::LoadU(narrow, x + i));
      const auto b = hn::PromoteTo(wide, hn::LoadU(narrow, x + i + 4));
      low = hn::MulAdd(a, a, low);
      high = hn::MulAdd(b, b, high);
    }
    const auto four = hn::Add(low, high);
    const auto two = hn::Add(hn::LowerHalf(half, four), hn::UpperHalf(half, four));
    sums[group] = hn::GetLane(two) + hn::ExtractLane(two, 1);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(GroupSums);

void AddSumOfSquares(const float* x, int64_t n, SquareSum& result) {
  AddGroups(HWY_DYNAMIC_DISPATCH(GroupSums), x, n, result);
}

}  // namespace ullage::kernels
#endif
