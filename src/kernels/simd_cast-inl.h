// A vector at a time: bf16, fp16 and fp32 arrays, and weights with their extensions, read into and
// written from float vectors.
// Compiled once for each instruction set; internal to the room.

#include <cstdint>

#include "base/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// True while the instruction set without vectors is compiled: it calls the plain reference.
#define ULLAGE_PLAIN_TARGET (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128)

#if defined(ULLAGE_KERNELS_SIMD_CAST_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ULLAGE_KERNELS_SIMD_CAST_INL_H
#undef ULLAGE_KERNELS_SIMD_CAST_INL_H
#else
#define ULLAGE_KERNELS_SIMD_CAST_INL_H
#endif

#if !ULLAGE_PLAIN_TARGET
HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;  // uint32_t
using WordVector = hn::Vec<WordTag>;

// Highway's own conversion to bf16 truncates; this rounds to nearest even and keeps NaN.
HWY_INLINE WordVector BFloat16Bits(FloatVector value) {
  const WordTag word;
  const auto bits = hn::BitCast(word, value);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(word, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(word, 0x7fff))));
  const auto is_nan = hn::RebindMask(word, hn::IsNaN(value));
  return hn::IfThenElse(is_nan, hn::Or(high, hn::Set(word, 0x40)), rounded);
}

template <DType kType>
HWY_INLINE FloatVector LoadFloats(const void* array, int64_t index) {
  const FloatTag tag;
  if constexpr (kType == DType::kFloat32) {
    return hn::LoadU(tag, static_cast<const float*>(array) + index);
  } else if constexpr (kType == DType::kBFloat16) {
    const hn::Rebind<hwy::bfloat16_t, FloatTag> half;
    return hn::PromoteTo(tag, hn::LoadU(half, static_cast<const hwy::bfloat16_t*>(array) + index));
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    return hn::PromoteTo(tag, hn::LoadU(half, static_cast<const hwy::float16_t*>(array) + index));
  }
}

template <DType kType>
HWY_INLINE void StoreFloats(FloatVector value, void* array, int64_t index) {
  const FloatTag tag;
  if constexpr (kType == DType::kFloat32) {
    hn::StoreU(value, tag, static_cast<float*>(array) + index);
  } else if constexpr (kType == DType::kBFloat16) {
    const hn::Rebind<uint16_t, FloatTag> half;
    const hn::RebindToSigned<FloatTag> signed_word;
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(signed_word, BFloat16Bits(value))), half,
               static_cast<uint16_t*>(array) + index);
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    hn::StoreU(hn::DemoteTo(half, value), half, static_cast<hwy::float16_t*>(array) + index);
  }
}

// The bits of a vector of elements, in 32-bit lanes.
template <DType kType>
HWY_INLINE WordVector LoadBits(const void* array, int64_t index) {
  const WordTag word;
  if constexpr (kType == DType::kFloat32) {
    return hn::LoadU(word, static_cast<const uint32_t*>(array) + index);
  } else {
    const hn::Rebind<uint16_t, FloatTag> half;
    return hn::PromoteTo(word, hn::LoadU(half, static_cast<const uint16_t*>(array) + index));
  }
}

// The lower half of each lane.
HWY_INLINE void StoreLow16(WordVector bits, void* array, int64_t index) {
  const hn::Rebind<uint16_t, FloatTag> half;
  hn::StoreU(hn::TruncateTo(half, bits), half, static_cast<uint16_t*>(array) + index);
}

// The masters of a vector of weights, see Note [Master in 16 + 16 bit].
template <DType kWeight>
HWY_INLINE FloatVector LoadMasters(const void* weight, const void* extension, int64_t index) {
  if constexpr (kWeight == DType::kFloat32) {
    return LoadFloats<DType::kFloat32>(weight, index);
  } else if constexpr (kWeight == DType::kFloat16) {
    return LoadFloats<DType::kFloat32>(extension, index);
  } else {
    const WordTag word;
    const hn::RebindToSigned<FloatTag> signed_word;
    const hn::Rebind<int16_t, FloatTag> half;
    const auto high = hn::ShiftLeft<16>(LoadBits<kWeight>(weight, index));
    const auto low =
        hn::PromoteTo(signed_word, hn::LoadU(half, static_cast<const int16_t*>(extension) + index));
    return hn::BitCast(FloatTag(), hn::Add(high, hn::BitCast(word, low)));
  }
}

template <DType kWeight>
HWY_INLINE void StoreMasters(FloatVector master, void* weight, void* extension, int64_t index) {
  if constexpr (kWeight == DType::kBFloat16) {
    const WordTag word;
    const auto given = hn::BitCast(word, master);
    const auto quiet = hn::Or(hn::And(given, hn::Set(word, 0x80000000)), hn::Set(word, 0x7fc00000));
    const auto is_nan = hn::RebindMask(word, hn::IsNaN(master));
    const auto bits = hn::IfThenElse(is_nan, quiet, given);
    StoreLow16(hn::ShiftRight<16>(hn::Add(bits, hn::Set(word, 0x8000))), weight, index);
    StoreLow16(bits, extension, index);
  } else {
    StoreFloats<kWeight>(master, weight, index);
    if constexpr (kWeight == DType::kFloat16) {
      StoreFloats<DType::kFloat32>(master, extension, index);
    }
  }
}

// For streaming loops over several arrays: asks for the cache lines that element `index` will need
// a little later. The CPU's own prefetcher starts anew at every page, and with five arrays that
// shows. The address may lie beyond the array: a prefetch never faults.
constexpr int64_t kPrefetchElements = 256;
HWY_INLINE bool PrefetchIsDue(int64_t index) {
  return index % 16 == 0;
}  // a line of floats
template <DType kType>
HWY_INLINE void PrefetchAfter(const void* array, int64_t index) {
  const auto address = reinterpret_cast<uintptr_t>(array) +
                       static_cast<uintptr_t>((index + kPrefetchElements) * ElementBytes(kType));
  hwy::Prefetch(reinterpret_cast<const char*>(address));
}
template <DType kWeight>
HWY_INLINE void PrefetchMastersAfter(const void* weight, const void* extension, int64_t index) {
  PrefetchAfter<kWeight>(weight, index);
  if constexpr (kWeight == DType::kBFloat16) PrefetchAfter<DType::kBFloat16>(extension, index);
  if constexpr (kWeight == DType::kFloat16) PrefetchAfter<DType::kFloat32>(extension, index);
}

// How many elements a loop over whole vectors covers.
HWY_INLINE int64_t VectorLanes() {
  return static_cast<int64_t>(hn::Lanes(FloatTag()));
}
HWY_INLINE int64_t WholeVectors(int64_t n) {
  return n - n % VectorLanes();
}

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();
#endif  // !ULLAGE_PLAIN_TARGET

#endif  // per-target include guard
