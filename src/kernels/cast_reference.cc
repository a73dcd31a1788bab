#include <cstring>

#include "kernels/cast.h"
#include "kernels/scalar_cast.h"

namespace ullage::kernels::reference {

void Convert(DType from, const void* in, DType to, void* out, int64_t n) {
  if (from == to) {
    if (n > 0) std::memcpy(out, in, static_cast<size_t>(n * ElementBytes(from)));
    return;
  }
  for (int64_t i = 0; i < n; ++i) StoreFloat(to, out, i, LoadFloat(from, in, i));
}

}  // namespace ullage::kernels::reference
