#include "kernels/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sgd.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/sgd_internal.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET

void SgdTarget(const SgdFactors& factors, const SgdArrays& arrays, int64_t n) {
  reference::SgdRange(factors, arrays, 0, n);
}

#else

template <DType kGradient, DType kWeight>
void SgdVectors(const SgdFactors& factors, const SgdArrays& arrays, int64_t n) {
  const FloatTag tag;
  const auto gradient_factor = hn::Set(tag, factors.gradient_factor);
  const auto weight_decay = hn::Set(tag, factors.weight_decay);
  const auto momentum = hn::Set(tag, factors.momentum);
  const auto one_minus_dampening = hn::Set(tag, factors.one_minus_dampening);
  const auto minus_lr = hn::Set(tag, factors.minus_lr);
  const Momentum kind = factors.kind;
  const bool decay = factors.decay;
  const bool nesterov = factors.nesterov;
  void* HWY_RESTRICT weight = arrays.weights.weight;
  void* HWY_RESTRICT extension = arrays.weights.extension;
  float* HWY_RESTRICT buffer = arrays.momentum_buffer;
  const void* HWY_RESTRICT gradient = arrays.gradient;

  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    if (PrefetchIsDue(i)) {
      PrefetchMastersAfter<kWeight>(weight, extension, i);
      PrefetchAfter<kGradient>(gradient, i);
      if (kind != Momentum::kNone) PrefetchAfter<DType::kFloat32>(buffer, i);
    }
    auto p = LoadMasters<kWeight>(weight, extension, i);
    auto g = hn::Mul(gradient_factor, LoadFloats<kGradient>(gradient, i));
    if (decay) g = hn::MulAdd(weight_decay, p, g);
    if (kind != Momentum::kNone) {
      auto b = g;
      if (kind == Momentum::kLaterStep) {
        b = hn::MulAdd(momentum, hn::LoadU(tag, buffer + i), hn::Mul(one_minus_dampening, g));
      }
      hn::StoreU(b, tag, buffer + i);
      g = nesterov ? hn::MulAdd(momentum, b, g) : b;
    }
    p = hn::MulAdd(minus_lr, g, p);
    StoreMasters<kWeight>(p, weight, extension, i);
  }
  reference::SgdRange(factors, arrays, whole, n);
}

template <DType kGradient>
void SgdOfGradient(const SgdFactors& factors, const SgdArrays& arrays, int64_t n) {
  using enum DType;
  switch (arrays.weights.dtype) {
    case kFloat32:
      return SgdVectors<kGradient, kFloat32>(factors, arrays, n);
    case kBFloat16:
      return SgdVectors<kGradient, kBFloat16>(factors, arrays, n);
    case kFloat16:
      return SgdVectors<kGradient, kFloat16>(factors, arrays, n);
  }
}

void SgdTarget(const SgdFactors& factors, const SgdArrays& arrays, int64_t n) {
  switch (arrays.gradient_dtype) {
    case DType::kFloat32:
      return SgdOfGradient<DType::kFloat32>(factors, arrays, n);
    case DType::kBFloat16:
      return SgdOfGradient<DType::kBFloat16>(factors, arrays, n);
    case DType::kFloat16:
      return SgdOfGradient<DType::kFloat16>(factors, arrays, n);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(SgdTarget);

void Sgd(const SgdStep& step, const WeightRange& weights, DType gradient_dtype,
         const void* gradient, float* momentum_buffer, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SgdTarget)
  (SgdFactors(step), {weights, gradient_dtype, gradient, momentum_buffer}, n);
}

}  // namespace ullage::kernels
#endif
