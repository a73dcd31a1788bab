// The element types of parameters, gradients and state, without torch.
#pragma once

#include <cstdint>
#include <string_view>

namespace ullage {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr std::int64_t ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
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
