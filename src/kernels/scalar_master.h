// One element at a time: a weight and its extension from and to the fp32 master, see
// Note [Master in 16 + 16 bit]. Internal to the room.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/scalar_cast.h"
#include "kernels/weights.h"

namespace ullage::kernels {

struct BFloat16AndExtension {
  uint16_t weight;
  int16_t extension;
};

constexpr float JoinMaster(BFloat16AndExtension parts) {
  const uint32_t high = static_cast<uint32_t>(parts.weight) << 16;
  return std::bit_cast<float>(high + static_cast<uint32_t>(int32_t{parts.extension}));
}

constexpr BFloat16AndExtension SplitMaster(float master) {
  uint32_t bits = std::bit_cast<uint32_t>(master);
  // The lower half of a NaN says nothing, and rounding it up could make it an infinity or a zero.
  if ((bits & 0x7fffffff) > 0x7f800000) bits = (bits & 0x80000000) | 0x7fc00000;
  return {static_cast<uint16_t>((bits + 0x8000) >> 16), static_cast<int16_t>(bits & 0xffff)};
}

// Element `index` of a range; the arrays need not be aligned.
inline float LoadMasterAt(const WeightRange& range, int64_t index) {
  if (range.dtype == DType::kFloat32) return LoadFloat(DType::kFloat32, range.weight, index);
  if (range.dtype == DType::kFloat16) return LoadFloat(DType::kFloat32, range.extension, index);
  return JoinMaster(
      {LoadBits16(range.weight, index), static_cast<int16_t>(LoadBits16(range.extension, index))});
}

inline void StoreMasterAt(const WeightRange& range, int64_t index, float master) {
  if (range.dtype == DType::kBFloat16) {
    const BFloat16AndExtension parts = SplitMaster(master);
    StoreBits16(range.weight, index, parts.weight);
    StoreBits16(range.extension, index, static_cast<uint16_t>(parts.extension));
    return;
  }
  StoreFloat(range.dtype, range.weight, index, master);
  if (range.dtype == DType::kFloat16) {
    StoreFloat(DType::kFloat32, range.extension, index, master);
  }
}

}  // namespace ullage::kernels
