#include "kernels/write_back.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/write_back.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/scalar_cast.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET

int64_t AdoptWritesTarget(const void* before, const WeightRange& after, int64_t n) {
  return reference::AdoptWrites(before, after, n);
}

#else

template <DType kWeight>
int64_t AdoptWritesVectors(const void* before, const WeightRange& after, int64_t n) {
  const FloatTag tag;
  int64_t changed = 0;
  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    const auto differ = hn::Ne(LoadBits<kWeight>(before, i), LoadBits<kWeight>(after.weight, i));
    // Nearly always: most weights are as the last step left them.
    if (hn::AllFalse(WordTag(), differ)) continue;
    const auto written = LoadFloats<kWeight>(after.weight, i);
    const auto both_nan = hn::And(hn::IsNaN(LoadFloats<kWeight>(before, i)), hn::IsNaN(written));
    const auto adopt = hn::AndNot(both_nan, hn::RebindMask(tag, differ));
    changed += static_cast<int64_t>(hn::CountTrue(tag, adopt));
    if constexpr (kWeight == DType::kBFloat16) {
      const auto kept = LoadBits<kWeight>(after.extension, i);
      StoreLow16(hn::IfThenZeroElse(hn::RebindMask(WordTag(), adopt), kept), after.extension, i);
    } else if constexpr (kWeight == DType::kFloat16) {
      const auto kept = LoadFloats<DType::kFloat32>(after.extension, i);
      StoreFloats<DType::kFloat32>(hn::IfThenElse(adopt, written, kept), after.extension, i);
    }
  }
  return changed +
         reference::AdoptWrites(At(kWeight, before, whole), Skip(after, whole), n - whole);
}

int64_t AdoptWritesTarget(const void* before, const WeightRange& after, int64_t n) {
  switch (after.dtype) {
    case DType::kFloat32:
      return AdoptWritesVectors<DType::kFloat32>(before, after, n);
    case DType::kBFloat16:
      return AdoptWritesVectors<DType::kBFloat16>(before, after, n);
    case DType::kFloat16:
      return AdoptWritesVectors<DType::kFloat16>(before, after, n);
  }
  return 0;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(AdoptWritesTarget);

int64_t AdoptWrites(const void* before, const WeightRange& after, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(AdoptWritesTarget)(before, after, n);
}

}  // namespace ullage::kernels
#endif
