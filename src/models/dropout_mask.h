// Which elements dropout keeps: a function of a seed and the element's index, without state.
//
// Note [Dropout from a counter]
// torch draws one number of a Mersenne twister for every element (12 ns each on one core) and
// keeps the mask for backward. Here the decision is a keyed integer hash of the index, so that it
// runs in vectors, needs no order, gives the same mask for any number of threads and any SIMD
// target and on CUDA, and is computed again in backward instead of being kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dropout_hash.h"

namespace ullage::models {

// The largest hash value that drops its element, plus one: `p` of all 32-bit values. 0 <= p < 1.
std::uint32_t DropThreshold(double p);

// factors[i] = 0 where element `first` + i is dropped, `scale` where it is kept. SIMD.
void DropoutFactors(std::uint64_t seed, std::uint64_t first, std::uint32_t threshold, float scale,
                    float* factors, std::size_t count);

}  // namespace ullage::models
