// The element types of parameters, gradients and state, without torch.
#pragma once

#include <cstdint>
#include <string_view>

namespace ullage {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr std::int64_t ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// What an exact fp32 value takes beside the weight that is its rounding: nothing, the 16 bits that
// bf16 cut off, or all of it.
constexpr std::int64_t MasterExtensionBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0;
    case DType::kBFloat16:
      return 2;
    case DType::kFloat16:
      return 4;
  }
  return 0;
}

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
  }
  return "?";
}

}  // namespace ullage
