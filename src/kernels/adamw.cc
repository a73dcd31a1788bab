#include "kernels/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/adamw_internal.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET

void AdamWTarget(const AdamWFactors& factors, const AdamWArrays& arrays, int64_t n) {
  reference::AdamWRange(factors, arrays, 0, n);
}

#else

template <DType kGradient, DType kWeight>
void AdamWVectors(const AdamWFactors& factors, const AdamWArrays& arrays, int64_t n) {
  const FloatTag tag;
  const auto gradient_factor = hn::Set(tag, factors.gradient_factor);
  const auto decay_factor = hn::Set(tag, factors.decay_factor);
  const auto beta1 = hn::Set(tag, factors.beta1);
  const auto one_minus_beta1 = hn::Set(tag, factors.one_minus_beta1);
  const auto beta2 = hn::Set(tag, factors.beta2);
  const auto one_minus_beta2 = hn::Set(tag, factors.one_minus_beta2);
  const auto eps = hn::Set(tag, factors.eps);
  const auto step_size = hn::Set(tag, factors.step_size);
  const auto sqrt_correction2 = hn::Set(tag, factors.sqrt_correction2);
  const Decay decay = factors.decay;
  void* HWY_RESTRICT weight = arrays.weights.weight;
  void* HWY_RESTRICT extension = arrays.weights.extension;
  float* HWY_RESTRICT exp_avg = arrays.exp_avg;
  float* HWY_RESTRICT exp_avg_sq = arrays.exp_avg_sq;
  const void* HWY_RESTRICT gradient = arrays.gradient;

  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    if (PrefetchIsDue(i)) {
      PrefetchMastersAfter<kWeight>(weight, extension, i);
      PrefetchAfter<DType::kFloat32>(exp_avg, i);
      PrefetchAfter<DType::kFloat32>(exp_avg_sq, i);
      PrefetchAfter<kGradient>(gradient, i);
    }
    auto p = LoadMasters<kWeight>(weight, extension, i);
    auto m = hn::LoadU(tag, exp_avg + i);
    auto v = hn::LoadU(tag, exp_avg_sq + i);
    auto g = hn::Mul(gradient_factor, LoadFloats<kGradient>(gradient, i));
    if (decay == Decay::kL2) g = hn::MulAdd(decay_factor, p, g);
    m = hn::MulAdd(beta1, m, hn::Mul(one_minus_beta1, g));
    v = hn::MulAdd(beta2, v, hn::Mul(hn::Mul(one_minus_beta2, g), g));
    if (decay == Decay::kDecoupled) p = hn::MulAdd(decay_factor, p, p);
    const auto divisor = hn::Add(hn::Div(hn::Sqrt(v), sqrt_correction2), eps);
    p = hn::Sub(p, hn::Div(hn::Mul(step_size, m), divisor));
    hn::StoreU(m, tag, exp_avg + i);
    hn::StoreU(v, tag, exp_avg_sq + i);
    StoreMasters<kWeight>(p, weight, extension, i);
  }
  reference::AdamWRange(factors, arrays, whole, n);
}

template <DType kGradient>
void AdamWOfGradient(const AdamWFactors& factors, const AdamWArrays& arrays, int64_t n) {
  using enum DType;
  switch (arrays.weights.dtype) {
    case kFloat32:
      return AdamWVectors<kGradient, kFloat32>(factors, arrays, n);
    case kBFloat16:
      return AdamWVectors<kGradient, kBFloat16>(factors, arrays, n);
    case kFloat16:
      return AdamWVectors<kGradient, kFloat16>(factors, arrays, n);
  }
}

void AdamWTarget(const AdamWFactors& factors, const AdamWArrays& arrays, int64_t n) {
  switch (arrays.gradient_dtype) {
    case DType::kFloat32:
      return AdamWOfGradient<DType::kFloat32>(factors, arrays, n);
    case DType::kBFloat16:
      return AdamWOfGradient<DType::kBFloat16>(factors, arrays, n);
    case DType::kFloat16:
      return AdamWOfGradient<DType::kFloat16>(factors, arrays, n);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(AdamWTarget);

void AdamW(const AdamWStep& step, const WeightRange& weights, DType gradient_dtype,
           const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AdamWTarget)
  (AdamWFactors(step), {weights, gradient_dtype, gradient, exp_avg, exp_avg_sq}, n);
}

}  // namespace ullage::kernels
#endif
