// Conversion between fp32, bf16 and fp16 arrays.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ullage::kernels {

// out[i] = in[i] in the other type, for 0 <= i < n. Rounds to nearest even; what is too large for
// fp16 becomes infinity, what is small becomes subnormal; all as torch does. A NaN stays one and
// keeps its sign and leading bits; narrowing makes it quiet. Between bf16 and fp16 the value goes
// through fp32, which is exact on the way in. Equal types are copied bit for bit.
// `in` and `out` must not overlap. Neither needs alignment (64 bytes is fastest). One thread.
void Convert(DType from, const void* in, DType to, void* out, int64_t n);

namespace reference {
void Convert(DType from, const void* in, DType to, void* out, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
