// Between our element types and torch's.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "base/dtype.h"
#include "ullage/error.h"

namespace ullage::torchx {

constexpr c10::ScalarType ToTorch(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return c10::ScalarType::Float;
    case DType::kBFloat16:
      return c10::ScalarType::BFloat16;
    case DType::kFloat16:
      return c10::ScalarType::Half;
  }
  return c10::ScalarType::Undefined;
}

// Throws UnsupportedError for other types than the three.
inline DType FromTorch(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return DType::kFloat32;
    case c10::ScalarType::BFloat16:
      return DType::kBFloat16;
    case c10::ScalarType::Half:
      return DType::kFloat16;
    default:
      throw UnsupportedError(std::string("tensors of type ") + c10::toString(type),
                             "use float32, bfloat16 or float16");
  }
}

}  // namespace ullage::torchx
