#include <cmath>

#include "kernels/scalar_cast.h"
#include "kernels/write_back.h"

namespace ullage::kernels::reference {
namespace {

uint32_t RoundedBits(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat32:
      return std::bit_cast<uint32_t>(value);
    case DType::kBFloat16:
      return BFloat16FromFloat(value);
    case DType::kFloat16:
      return Float16FromFloat(value);
  }
  return 0;
}

}  // namespace

int64_t AdoptWrites(DType weight_dtype, const void* weight, float* master, int64_t n) {
  int64_t changed = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float written = LoadFloat(weight_dtype, weight, i);
    // The value of a 16-bit number rounds to that number, so equal bits are equal weights.
    if (RoundedBits(weight_dtype, master[i]) == RoundedBits(weight_dtype, written)) continue;
    if (std::isnan(master[i]) && std::isnan(written)) continue;
    master[i] = written;
    ++changed;
  }
  return changed;
}

}  // namespace ullage::kernels::reference
