// The exact sum of doubles, whatever the order in which they come.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace ullage::kernels {

// A fixed-point number wide enough for any sum of finite doubles: the "small superaccumulator" of
// Radford M. Neal, "Fast exact summation using small and large superaccumulators" (2015). It holds
// 32 bits of the number in each 64-bit word; the upper half of a word gathers carries, which are
// passed on every 2^30 additions. There is no rounding before ToDouble, so the result depends on
// the added values alone, not on their order or on how they were divided among ranks.
// Up to 2^60 values of any size, sign and exponent. 552 bytes. Not thread-safe.
class ExactSum {
 public:
  static constexpr int kWords = 68;

  // Throws StateError when `value` is infinite or NaN; the sum is then unchanged.
  void Add(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    const int exponent = static_cast<int>(bits >> 52) & 0x7ff;
    if (exponent == 0x7ff) [[unlikely]] {
      RefuseNonFinite(value);
    }
    const bool subnormal = exponent == 0;
    const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
    const uint64_t mantissa = subnormal ? fraction : fraction | (uint64_t{1} << 52);
    // value = +-mantissa * 2^(position - 1074), and bit 0 of word 0 stands for 2^-1074.
    const int position = subnormal ? 0 : exponent - 1;
    const int shift = position % 32;
    const uint64_t rest = mantissa >> (32 - shift);
    const auto negative = static_cast<int64_t>(bits) >> 63;  // 0 or -1
    const auto add = [negative](int64_t& word, uint64_t part) {
      word += (static_cast<int64_t>(part) ^ negative) - negative;
    };
    int64_t* const word = words_.data() + position / 32;
    add(word[0], (mantissa << shift) & 0xffffffff);
    add(word[1], rest & 0xffffffff);
    add(word[2], rest >> 32);
    if (++pending_ == kMaxPending) Normalize();
  }

  void Add(const ExactSum& other);

  // Passes the carries on: each word but the last is then in [0, 2^32), the last has the sign.
  // Equal sums then have equal words.
  void Normalize();

  // The words, normalised, for an integer all-reduce (sum) over up to 2^20 ranks. Call Normalize()
  // after it. The span is valid as long as this object.
  std::span<int64_t> words();

  // The sum that `words` stand for, normalised or not: those of another ExactSum, or the total of
  // several such, or what device::AddSumOfSquares left.
  static ExactSum FromWords(std::span<const int64_t, kWords> words);

  // The sum rounded once, to nearest even; infinite when it exceeds the range of double.
  double ToDouble() const;

  void Clear();

 private:
  static constexpr int64_t kMaxPending = int64_t{1} << 30;

  [[noreturn]] static void RefuseNonFinite(double value);

  std::array<int64_t, kWords> words_{};
  int64_t pending_ = 0;  // additions since the last Normalize
};

}  // namespace ullage::kernels
