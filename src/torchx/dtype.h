// Between our element types and torch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "base/dtype.h"

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

}  // namespace ullage::torchx
