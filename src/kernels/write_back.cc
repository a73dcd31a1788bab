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

int64_t AdoptWritesTarget(DType weight_dtype, const void* weight, float* master, int64_t n) {
  return reference::AdoptWrites(weight_dtype, weight, master, n);
}

#else

template <DType kWeight>
int64_t AdoptWritesVectors(const void* weight, float* master, int64_t n) {
  const FloatTag tag;
  int64_t changed = 0;
  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    const auto old = hn::LoadU(tag, master + i);
    const auto differ = hn::Ne(RoundedBits<kWeight>(old), LoadBits<kWeight>(weight, i));
    // Nearly always: most weights are as the last step left them.
    if (hn::AllFalse(WordTag(), differ)) continue;
    const auto written = LoadFloats<kWeight>(weight, i);
    const auto both_nan = hn::And(hn::IsNaN(old), hn::IsNaN(written));
    const auto adopt = hn::AndNot(both_nan, hn::RebindMask(tag, differ));
    hn::StoreU(hn::IfThenElse(adopt, written, old), tag, master + i);
    changed += static_cast<int64_t>(hn::CountTrue(tag, adopt));
  }
  return changed +
         reference::AdoptWrites(kWeight, At(kWeight, weight, whole), master + whole, n - whole);
}

int64_t AdoptWritesTarget(DType weight_dtype, const void* weight, float* master, int64_t n) {
  switch (weight_dtype) {
    case DType::kFloat32:
      return AdoptWritesVectors<DType::kFloat32>(weight, master, n);
    case DType::kBFloat16:
      return AdoptWritesVectors<DType::kBFloat16>(weight, master, n);
    case DType::kFloat16:
      return AdoptWritesVectors<DType::kFloat16>(weight, master, n);
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

int64_t AdoptWrites(DType weight_dtype, const void* weight, float* master, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(AdoptWritesTarget)(weight_dtype, weight, master, n);
}

}  // namespace ullage::kernels
#endif
