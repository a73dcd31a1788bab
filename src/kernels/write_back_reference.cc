#include <cmath>

#include "kernels/scalar_master.h"
#include "kernels/write_back.h"

namespace ullage::kernels::reference {

int64_t AdoptWrites(const void* before, const WeightRange& after, int64_t n) {
  int64_t changed = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float old = LoadFloat(after.dtype, before, i);
    const float written = LoadFloat(after.dtype, after.weight, i);
    // Different bits of the 16-bit types are different bits, or another NaN, in fp32 as well.
    if (std::bit_cast<uint32_t>(old) == std::bit_cast<uint32_t>(written)) continue;
    if (std::isnan(old) && std::isnan(written)) continue;
    ++changed;
    if (after.dtype == DType::kBFloat16) StoreBits16(after.extension, i, 0);
    if (after.dtype == DType::kFloat16) StoreFloat(DType::kFloat32, after.extension, i, written);
  }
  return changed;
}

}  // namespace ullage::kernels::reference
