#include "models/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/dropout_mask.cc"
#include "hwy/foreach_target.h"
// Highway wants this order: foreach_target.h compiles this file once for each target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::models::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class V>
HWY_INLINE V Mix(V x) {
  const hn::DFromV<V> d;
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(d, 0x7feb352dU));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(d, 0x846ca68bU));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// All indices share their upper 32 bits, which `high_key` already holds.
void Factors(std::uint32_t low_key, std::uint32_t high_key, std::uint32_t first,
             std::uint32_t threshold, float scale, float* HWY_RESTRICT factors, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> du;
  const hn::RebindToFloat<decltype(du)> df;
  const std::size_t lanes = hn::Lanes(du);
  const auto low = hn::Set(du, low_key), high = hn::Set(du, high_key);
  const auto limit = hn::Set(du, threshold);
  const auto kept = hn::Set(df, scale);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto index = hn::Iota(du, first + static_cast<std::uint32_t>(i));
    const auto hash = Mix(hn::Xor(Mix(hn::Xor(index, low)), high));
    const auto drop = hn::RebindMask(df, hn::Lt(hash, limit));
    hn::StoreU(hn::IfThenZeroElse(drop, kept), df, factors + i);
  }
  for (; i < count; ++i) {
    const std::uint32_t index = first + static_cast<std::uint32_t>(i);
    factors[i] =
        kernels::MixBits(kernels::MixBits(index ^ low_key) ^ high_key) >= threshold ? scale : 0.0F;
  }
}

}  // namespace ullage::models::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>

namespace ullage::models {

HWY_EXPORT(Factors);

std::uint32_t DropThreshold(double p) {
  const double threshold = std::nearbyint(p * 4294967296.0);
  return static_cast<std::uint32_t>(std::clamp(threshold, 0.0, 4294967295.0));
}

void DropoutFactors(std::uint64_t seed, std::uint64_t first, std::uint32_t threshold, float scale,
                    float* factors, std::size_t count) {
  constexpr std::uint64_t kBlock = std::uint64_t{1} << 32;
  while (count > 0) {
    const auto part =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, kBlock - first % kBlock));
    const auto high_key = static_cast<std::uint32_t>(seed >> 32) +
                          static_cast<std::uint32_t>(first >> 32) * 0x9e3779b9U;
    HWY_DYNAMIC_DISPATCH(Factors)
    (static_cast<std::uint32_t>(seed), high_key, static_cast<std::uint32_t>(first), threshold,
     scale, factors, part);
    first += part;
    factors += part;
    count -= part;
  }
}

}  // namespace ullage::models
#endif  // HWY_ONCE
