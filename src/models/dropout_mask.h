// Which elements dropout keeps: a function of a seed and the element's index, without state.
//
// Note [Dropout from a counter]
// torch draws one number of a Mersenne twister for every element (12 ns each on one core) and
// keeps the mask for backward. Here the decision is a keyed integer hash of the index, so that it
// runs in vectors, needs no order, gives the same mask for any number of threads and any SIMD
// target, and is computed again in backward instead of being kept.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ullage::models {

// The largest hash value that drops its element, plus one: `p` of all 32-bit values. 0 <= p < 1.
std::uint32_t DropThreshold(double p);

// The hash of element `index`: uniform over 32 bits. Two rounds of the "lowbias32" mixer (Chris
// Wellons, hash-prospector), each keyed by one half of the seed.
constexpr std::uint32_t MixBits(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}
constexpr std::uint32_t DropoutHash(std::uint64_t seed, std::uint64_t index) {
  const auto low_key = static_cast<std::uint32_t>(seed);
  const auto high_key = static_cast<std::uint32_t>(seed >> 32) +
                        static_cast<std::uint32_t>(index >> 32) * 0x9e3779b9U;
  return MixBits(MixBits(static_cast<std::uint32_t>(index) ^ low_key) ^ high_key);
}

// factors[i] = 0 where element `first` + i is dropped, `scale` where it is kept. SIMD.
void DropoutFactors(std::uint64_t seed, std::uint64_t first, std::uint32_t threshold, float scale,
                    float* factors, std::size_t count);

}  // namespace ullage::models
