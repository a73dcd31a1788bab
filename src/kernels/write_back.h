// Carrying a user's write to 16-bit weights over to their fp32 masters.
#pragma once

#include <cstdint>

#include "kernels/weights.h"

namespace ullage::kernels {

// `after` holds weights that may have been written to and the extensions from before; before[i] is
// the weight, of the same type, that element i had then. An element whose weight is no longer that,
// bit for bit (so +0 is not -0, but any NaN equals any NaN), loses its extension: its master
// becomes the value of the written weight. The others keep the digits that the weight has no room
// for. fp32 weights are their own master: there only the count is made. Returns how many differ.
// The arrays must not overlap; 64-byte alignment is fastest. One thread.
int64_t AdoptWrites(const void* before, const WeightRange& after, int64_t n);

namespace reference {
int64_t AdoptWrites(const void* before, const WeightRange& after, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
