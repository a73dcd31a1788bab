// A random generator whose numbers are the same with every library and machine: the order of the
// data must not depend on either. std::shuffle and the std distributions promise no such thing.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace ullage::data {

// SplitMix64 (Steele, Lea, Flood 2014): one step.
constexpr std::uint64_t SplitMix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// xoshiro256** 1.0 (Blackman, Vigna 2018), seeded by SplitMix64 as its authors advise.
class Random {
 public:
  // Different (seed, stream) give unrelated sequences.
  Random(std::uint64_t seed, std::uint64_t stream) {
    std::uint64_t state = seed;
    state = SplitMix64(state) ^ stream;
    for (std::uint64_t& word : words_) word = SplitMix64(state);
  }

  std::uint64_t Next() {
    const std::uint64_t result = std::rotl(words_[1] * 5, 7) * 9;
    const std::uint64_t shifted = words_[1] << 17;
    words_[2] ^= words_[0];
    words_[3] ^= words_[1];
    words_[1] ^= words_[2];
    words_[0] ^= words_[3];
    words_[2] ^= shifted;
    words_[3] = std::rotl(words_[3], 45);
    return result;
  }

  // Uniform over 0 .. bound - 1, without bias; `bound` > 0.
  std::uint64_t Below(std::uint64_t bound) {
    const std::uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound
    std::uint64_t value = Next();
    while (value < uneven) value = Next();
    return value % bound;
  }

  // Fisher and Yates, from the end.
  template <typename T>
  void Shuffle(std::span<T> items) {
    for (std::size_t left = items.size(); left > 1; --left) {
      std::swap(items[left - 1], items[Below(left)]);
    }
  }

 private:
  std::array<std::uint64_t, 4> words_{};
};

}  // namespace ullage::data
