#include "kernels/cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/scalar_cast.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET

void ConvertTarget(DType from, const void* in, DType to, void* out, int64_t n) {
  reference::Convert(from, in, to, out, n);
}

#else

template <DType kFrom, DType kTo>
void ConvertVectors(const void* in, void* out, int64_t n) {
  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    StoreFloats<kTo>(LoadFloats<kFrom>(in, i), out, i);
  }
  reference::Convert(kFrom, At(kFrom, in, whole), kTo, At(kTo, out, whole), n - whole);
}

void ConvertTarget(DType from, const void* in, DType to, void* out, int64_t n) {
  using enum DType;
  if (from == kFloat32 && to == kBFloat16) return ConvertVectors<kFloat32, kBFloat16>(in, out, n);
  if (from == kFloat32 && to == kFloat16) return ConvertVectors<kFloat32, kFloat16>(in, out, n);
  if (from == kBFloat16 && to == kFloat32) return ConvertVectors<kBFloat16, kFloat32>(in, out, n);
  if (from == kBFloat16 && to == kFloat16) return ConvertVectors<kBFloat16, kFloat16>(in, out, n);
  if (from == kFloat16 && to == kFloat32) return ConvertVectors<kFloat16, kFloat32>(in, out, n);
  if (from == kFloat16 && to == kBFloat16) return ConvertVectors<kFloat16, kBFloat16>(in, out, n);
  reference::Convert(from, in, to, out, n);  // equal types: a copy
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(ConvertTarget);

void Convert(DType from, const void* in, DType to, void* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ConvertTarget)(from, in, to, out, n);
}

}  // namespace ullage::kernels
#endif
