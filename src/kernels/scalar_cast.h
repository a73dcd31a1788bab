// One element at a time: the bits of bf16 and fp16 from and to fp32. The constexpr functions are
// compiled for CUDA devices too. Internal to the room.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace ullage::kernels {

constexpr float FloatFromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t high = bits >> 16;
  // Rounding a NaN up could carry into its exponent and make it an infinity or a zero.
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(high | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (high & 1)) >> 16);
}

constexpr float FloatFromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude < 0x0400) {  // zero or subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  uint32_t wide = sign | (magnitude << 13);
  if (magnitude > 0x7c00) wide |= 0x400000;  // quiet
  return std::bit_cast<float>(wide + (magnitude >= 0x7c00 ? 224u << 23 : 112u << 23));
}

constexpr uint16_t Float16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded = 0;
  if (magnitude > 0x7f800000) {  // NaN: keep its upper payload, made quiet
    rounded = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // 65520 and more round to infinity
    rounded = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: the last place of 0.5f + x is 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    rounded = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
  } else {
    rounded = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | rounded);
}

// Element `index` of an array of 16-bit elements or of `dtype`; the array need not be aligned.
inline uint16_t LoadBits16(const void* array, int64_t index) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(array) + index * 2, sizeof(bits));
  return bits;
}

inline void StoreBits16(void* array, int64_t index, uint16_t bits) {
  std::memcpy(static_cast<char*>(array) + index * 2, &bits, sizeof(bits));
}

inline float LoadFloat(DType dtype, const void* array, int64_t index) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(array) + index * 4, sizeof(value));
    return value;
  }
  const uint16_t bits = LoadBits16(array, index);
  return dtype == DType::kBFloat16 ? FloatFromBFloat16(bits) : FloatFromFloat16(bits);
}

inline void StoreFloat(DType dtype, void* array, int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    std::memcpy(static_cast<char*>(array) + index * 4, &value, sizeof(value));
    return;
  }
  StoreBits16(array, index,
              dtype == DType::kBFloat16 ? BFloat16FromFloat(value) : Float16FromFloat(value));
}

// Where element `index` of an array of `dtype` stands.
inline const void* At(DType dtype, const void* array, int64_t index) {
  return static_cast<const char*>(array) + index * ElementBytes(dtype);
}
inline void* At(DType dtype, void* array, int64_t index) {
  return static_cast<char*>(array) + index * ElementBytes(dtype);
}

}  // namespace ullage::kernels
