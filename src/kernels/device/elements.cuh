// One or several neighbouring elements of an array in one memory access, on the device. Internal to
// the room.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/scalar_master.h"

namespace ullage::kernels::device {

template <DType kType>
using Bits = std::conditional_t<kType == DType::kFloat32, uint32_t, uint16_t>;

template <DType kType>
__device__ inline float ToFloat(Bits<kType> bits) {
  if constexpr (kType == DType::kFloat32) return std::bit_cast<float>(bits);
  if constexpr (kType == DType::kBFloat16) return FloatFromBFloat16(bits);
  if constexpr (kType == DType::kFloat16) return FloatFromFloat16(bits);
}

template <DType kType>
__device__ inline Bits<kType> FromFloat(float value) {
  if constexpr (kType == DType::kFloat32) return std::bit_cast<uint32_t>(value);
  if constexpr (kType == DType::kBFloat16) return BFloat16FromFloat(value);
  if constexpr (kType == DType::kFloat16) return Float16FromFloat(value);
}

// kWidth elements as they lie in memory, 16 bytes at most; the alignment makes it one access.
template <DType kType, int kWidth>
struct alignas(ElementBytes(kType) * kWidth) Elements {
  Bits<kType> at[kWidth];
};

template <int kWidth>
struct Floats {
  float at[kWidth];
};

// `index` is that of the first element; array + index is aligned to the access.
template <DType kType, int kWidth>
__device__ inline Elements<kType, kWidth> LoadElements(const void* array, int64_t index) {
  const char* from = static_cast<const char*>(array) + index * ElementBytes(kType);
  return *reinterpret_cast<const Elements<kType, kWidth>*>(from);
}

template <DType kType, int kWidth>
__device__ inline void StoreElements(const Elements<kType, kWidth>& elements, void* array,
                                     int64_t index) {
  char* to = static_cast<char*>(array) + index * ElementBytes(kType);
  *reinterpret_cast<Elements<kType, kWidth>*>(to) = elements;
}

template <DType kType, int kWidth>
__device__ inline Floats<kWidth> LoadFloats(const void* array, int64_t index) {
  const auto elements = LoadElements<kType, kWidth>(array, index);
  Floats<kWidth> values;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values.at[i] = ToFloat<kType>(elements.at[i]);
  return values;
}

template <DType kType, int kWidth>
__device__ inline void StoreFloats(const Floats<kWidth>& values, void* array, int64_t index) {
  Elements<kType, kWidth> elements;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) elements.at[i] = FromFloat<kType>(values.at[i]);
  StoreElements<kType, kWidth>(elements, array, index);
}

// The masters of weights, see Note [Master in 16 + 16 bit].
template <DType kWeight, int kWidth>
__device__ inline Floats<kWidth> LoadMasters(const WeightRange& range, int64_t index) {
  if constexpr (kWeight == DType::kFloat32) {
    return LoadFloats<DType::kFloat32, kWidth>(range.weight, index);
  } else if constexpr (kWeight == DType::kFloat16) {
    return LoadFloats<DType::kFloat32, kWidth>(range.extension, index);
  } else {
    const auto weight = LoadElements<kWeight, kWidth>(range.weight, index);
    const auto extension = LoadElements<kWeight, kWidth>(range.extension, index);
    Floats<kWidth> masters;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      masters.at[i] = JoinMaster({weight.at[i], static_cast<int16_t>(extension.at[i])});
    }
    return masters;
  }
}

template <DType kWeight, int kWidth>
__device__ inline void StoreMasters(const Floats<kWidth>& masters, const WeightRange& range,
                                    int64_t index) {
  if constexpr (kWeight == DType::kBFloat16) {
    Elements<kWeight, kWidth> weight, extension;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const BFloat16AndExtension parts = SplitMaster(masters.at[i]);
      weight.at[i] = parts.weight;
      extension.at[i] = static_cast<uint16_t>(parts.extension);
    }
    StoreElements<kWeight, kWidth>(weight, range.weight, index);
    StoreElements<kWeight, kWidth>(extension, range.extension, index);
  } else {
    StoreFloats<kWeight, kWidth>(masters, range.weight, index);
    if constexpr (kWeight == DType::kFloat16) {
      StoreFloats<DType::kFloat32, kWidth>(masters, range.extension, index);
    }
  }
}

}  // namespace ullage::kernels::device
