#include "kernels/exact_sum.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::kernels {

void ExactSum::Add(const ExactSum& other) {
  ExactSum normalized = other;
  normalized.Normalize();
  for (size_t i = 0; i < words_.size(); ++i) words_[i] += normalized.words_[i];
  if (++pending_ == kMaxPending) Normalize();
}

void ExactSum::Normalize() {
  for (size_t i = 0; i + 1 < words_.size(); ++i) {
    words_[i + 1] += words_[i] >> 32;
    words_[i] &= 0xffffffff;
  }
  pending_ = 0;
}

std::span<int64_t> ExactSum::words() {
  Normalize();
  return words_;
}

ExactSum ExactSum::FromWords(std::span<const int64_t, kWords> words) {
  ExactSum sum;
  std::ranges::copy(words, sum.words_.begin());
  sum.Normalize();
  return sum;
}

double ExactSum::ToDouble() const {
  ExactSum sum = *this;
  sum.Normalize();
  const bool negative = sum.words_.back() < 0;
  if (negative) {
    for (int64_t& word : sum.words_) word = -word;
    sum.Normalize();
  }

  // 32-bit digits, two of zeros below so that three digits always exist.
  std::array<uint64_t, kWords + 3> digits{};
  for (size_t i = 0; i < sum.words_.size(); ++i) {
    digits[i + 2] = static_cast<uint64_t>(sum.words_[i]) & 0xffffffff;
  }
  digits.back() = static_cast<uint64_t>(sum.words_.back()) >> 32;
  size_t top = digits.size() - 1;
  while (top >= 2 && digits[top] == 0) --top;
  if (top < 2) return 0;

  // The leading 64 bits; the last of them also stands for all that lies below ("sticky"), so that
  // the conversion to double, itself rounded to nearest even, is the only rounding. No second one
  // follows: a sum below the normal range has at most 52 bits.
  const int zeros = std::countl_zero(static_cast<uint32_t>(digits[top]));
  uint64_t leading = (digits[top] << 32 | digits[top - 1]) << zeros;
  leading |= digits[top - 2] >> (32 - zeros);
  uint64_t below = (digits[top - 2] << zeros) & 0xffffffff;
  for (size_t i = 0; i + 2 < top; ++i) below |= digits[i];
  if (below != 0) leading |= 1;

  const int exponent = 32 * static_cast<int>(top - 2) - zeros - 32 - 1074;
  const double magnitude = std::ldexp(static_cast<double>(leading), exponent);
  return negative ? -magnitude : magnitude;
}

void ExactSum::Clear() {
  *this = ExactSum();
}

void ExactSum::RefuseNonFinite(double value) {
  throw StateError(fmt::format("{} cannot be part of an exact sum", value),
                   "look for non-finite values before summing; AddSumOfSquares reports the first");
}

}  // namespace ullage::kernels
