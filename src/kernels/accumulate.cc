#include "kernels/accumulate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/accumulate.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/scalar_cast.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET

void AddTarget(DType in_dtype, const void* in, DType sum_dtype, void* sum, int64_t n) {
  if (sum_dtype == in_dtype) return reference::AddTo16(in_dtype, sum, in, n);
  reference::AddToFloat(in_dtype, in, static_cast<float*>(sum), n);
}

void SetTarget(DType dtype, const void* in, float* sum, int64_t n) {
  reference::SetFloat(dtype, in, sum, n);
}

#else

template <DType kIn, DType kSum>
void AddVectors(const void* in, void* sum, int64_t n) {
  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    StoreFloats<kSum>(hn::Add(LoadFloats<kSum>(sum, i), LoadFloats<kIn>(in, i)), sum, i);
  }
  if constexpr (kSum == DType::kFloat32) {
    reference::AddToFloat(kIn, At(kIn, in, whole), static_cast<float*>(sum) + whole, n - whole);
  } else {
    reference::AddTo16(kSum, At(kSum, sum, whole), At(kIn, in, whole), n - whole);
  }
}

template <DType kIn>
void SetVectors(const void* in, float* sum, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t whole = WholeVectors(n);
  const bool is_aligned = reinterpret_cast<uintptr_t>(sum) % 64 == 0;
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    const auto value = hn::Add(hn::Zero(d), LoadFloats<kIn>(in, i));
    if (is_aligned) {
      hn::Stream(value, d, sum + i);
    } else {
      hn::StoreU(value, d, sum + i);
    }
  }
  hwy::FlushStream();
  reference::SetFloat(kIn, At(kIn, in, whole), sum + whole, n - whole);
}

void SetTarget(DType dtype, const void* in, float* sum, int64_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return SetVectors<DType::kFloat32>(in, sum, n);
    case DType::kBFloat16:
      return SetVectors<DType::kBFloat16>(in, sum, n);
    case DType::kFloat16:
      return SetVectors<DType::kFloat16>(in, sum, n);
  }
}

void AddTarget(DType in_dtype, const void* in, DType sum_dtype, void* sum, int64_t n) {
  using enum DType;
  const bool same = sum_dtype == in_dtype;
  switch (in_dtype) {
    case kFloat32:
      return AddVectors<kFloat32, kFloat32>(in, sum, n);
    case kBFloat16:
      return same ? AddVectors<kBFloat16, kBFloat16>(in, sum, n)
                  : AddVectors<kBFloat16, kFloat32>(in, sum, n);
    case kFloat16:
      return same ? AddVectors<kFloat16, kFloat16>(in, sum, n)
                  : AddVectors<kFloat16, kFloat32>(in, sum, n);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(AddTarget);
HWY_EXPORT(SetTarget);

void SetFloat(DType dtype, const void* in, float* sum, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SetTarget)(dtype, in, sum, n);
}

void AddToFloat(DType dtype, const void* in, float* sum, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddTarget)(dtype, in, DType::kFloat32, sum, n);
}

void AddTo16(DType dtype, void* sum, const void* in, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddTarget)(dtype, in, dtype, sum, n);
}

}  // namespace ullage::kernels
#endif
