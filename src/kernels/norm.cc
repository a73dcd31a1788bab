#include "kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/group_sums.h"
#include "kernels/scalar_cast.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET || HWY_MAX_BYTES < 32

void GroupSums(DType dtype, const void* x, int64_t groups, double* sums) {
  reference::GroupSums(dtype, x, groups, sums);
}

#else

// Four lanes to a vector on every instruction set: two accumulators hold the eight lanes.
using WideTag = hn::FixedTag<double, 4>;
using NarrowTag = hn::FixedTag<float, 4>;

template <DType kType>
HWY_INLINE hn::Vec<WideTag> LoadFour(const void* x, int64_t index) {
  const NarrowTag narrow;
  if constexpr (kType == DType::kFloat32) {
    return hn::PromoteTo(WideTag(), hn::LoadU(narrow, static_cast<const float*>(x) + index));
  } else {
    using Element = std::conditional_t<kType == DType::kBFloat16, hwy::bfloat16_t, hwy::float16_t>;
    const hn::Rebind<Element, NarrowTag> half;
    const auto four = hn::LoadU(half, static_cast<const Element*>(x) + index);
    return hn::PromoteTo(WideTag(), hn::PromoteTo(narrow, four));
  }
}

template <DType kType>
void GroupSumsVectors(const void* x, int64_t groups, double* sums) {
  constexpr int64_t kLine = 64 / ElementBytes(kType);
  const WideTag wide;
  const hn::Half<WideTag> half;
  for (int64_t group = 0; group < groups; ++group, x = At(kType, x, kGroup)) {
    auto low = hn::Zero(wide);   // lanes 0 to 3
    auto high = hn::Zero(wide);  // lanes 4 to 7
    for (int64_t i = 0; i < kGroup; i += 8) {
      if (i % kLine == 0) PrefetchAfter<kType>(x, i);
      const auto a = LoadFour<kType>(x, i);
      const auto b = LoadFour<kType>(x, i + 4);
      low = hn::MulAdd(a, a, low);
      high = hn::MulAdd(b, b, high);
    }
    const auto four = hn::Add(low, high);
    const auto two = hn::Add(hn::LowerHalf(half, four), hn::UpperHalf(half, four));
    sums[group] = hn::GetLane(two) + hn::ExtractLane(two, 1);
  }
}

void GroupSums(DType dtype, const void* x, int64_t groups, double* sums) {
  switch (dtype) {
    case DType::kFloat32:
      return GroupSumsVectors<DType::kFloat32>(x, groups, sums);
    case DType::kBFloat16:
      return GroupSumsVectors<DType::kBFloat16>(x, groups, sums);
    case DType::kFloat16:
      return GroupSumsVectors<DType::kFloat16>(x, groups, sums);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(GroupSums);

void AddSumOfSquares(DType dtype, const void* x, int64_t n, SquareSum& result) {
  AddGroups(HWY_DYNAMIC_DISPATCH(GroupSums), dtype, x, n, result);
}

}  // namespace ullage::kernels
#endif
