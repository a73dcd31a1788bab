// Which elements dropout keeps, as a function of a seed and the element's index: the hash that the
// CPU code of the models and device::DropoutMask have in common.
#pragma once

#include <cstdint>

namespace ullage::kernels {

// The "lowbias32" mixer (Chris Wellons, hash-prospector).
constexpr std::uint32_t MixBits(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}

// The hash of element `index`, uniform over 32 bits: two rounds of the mixer, each keyed by one
// half of the seed.
constexpr std::uint32_t DropoutHash(std::uint64_t seed, std::uint64_t index) {
  const auto low_key = static_cast<std::uint32_t>(seed);
  const auto high_key = static_cast<std::uint32_t>(seed >> 32) +
                        static_cast<std::uint32_t>(index >> 32) * 0x9e3779b9U;
  return MixBits(MixBits(static_cast<std::uint32_t>(index) ^ low_key) ^ high_key);
}

// What decides over the elements of an array in row-major order: an element is set to zero when its
// hash is below `threshold`, and multiplied by `scale` when not.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;  // 0: nothing is dropped
  float scale = 1;
  // Of kernels on a device: where the seed lies there instead, when the launch is recorded and will
  // be made again with others (torchx/recording.h).
  const std::uint64_t* seed_place = nullptr;
};

// 0 or key.scale.
constexpr float DropoutFactor(const DropoutKey& key, std::uint64_t index) {
  const std::uint64_t seed = key.seed_place != nullptr ? *key.seed_place : key.seed;
  return DropoutHash(seed, index) >= key.threshold ? key.scale : 0.0F;
}

}  // namespace ullage::kernels
