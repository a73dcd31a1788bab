// Four neighbouring words of an ExactSum in the registers of one thread. Internal to the room.
#pragma once

#include <cstdint>

namespace ullage::kernels::device {

using Word = unsigned long long;  // what CUDA's 64-bit atomics take

// Collects sums of squares, which are much alike: they hit the same few words again and again, and
// that many atomic additions to one place would take longer than reading the elements. A value
// occupies three words, so the window takes any value whose lowest word is its first or second, a
// range of 2^64. When one lies outside, the window is emptied into the block's words and moved so
// that it lies just within: values that alternate do not move it again. All additions are of
// integers, so their order does not matter. Up to 2^31 values.
class WordWindow {
 public:
  // `value` is the sum of squares of floats: not negative, finite and never subnormal, because the
  // smallest square is 2^-298. `block_words` lies in shared memory.
  __device__ void Add(double value, Word* block_words) {
    if (value == 0) return;
    const auto bits = static_cast<Word>(__double_as_longlong(value));
    const Word mantissa = (bits & ((Word{1} << 52) - 1)) | Word{1} << 52;
    // As ExactSum::Add: value = mantissa * 2^(position - 1074).
    const int position = static_cast<int>(bits >> 52) - 1;
    const int first = position / 32;
    const int shift = position % 32;
    if (first < base_ || first > base_ + 1) {
      Flush(block_words);
      base_ = first > base_ ? first - 1 : first;
    }
    const Word rest = mantissa >> (32 - shift);
    const Word part0 = (mantissa << shift) & 0xffffffff;
    const Word part1 = rest & 0xffffffff;
    const Word part2 = rest >> 32;
    const bool second = first != base_;
    words_[0] += second ? 0 : part0;
    words_[1] += second ? part0 : part1;
    words_[2] += second ? part1 : part2;
    words_[3] += second ? part2 : 0;
  }

  // Empties the windows of all threads of the warp, which call it together.
  __device__ void FlushWarp(Word* block_words) {
    constexpr unsigned kAll = 0xffffffff;
    const bool empty = base_ == kEmpty;
    const int lowest = __reduce_min_sync(kAll, empty ? INT32_MAX : base_);
    const bool near = empty || base_ - lowest <= 1;
    if (lowest == INT32_MAX) return;
    if (!__all_sync(kAll, near)) return Flush(block_words);
    // Windows that start at one of two neighbouring words, as nearly always: one addition a word.
    const bool second = !empty && base_ != lowest;
    Word sums[5] = {second ? 0 : words_[0], second ? words_[0] : words_[1],
                    second ? words_[1] : words_[2], second ? words_[2] : words_[3],
                    second ? words_[3] : 0};
#pragma unroll
    for (int i = 0; i < 5; ++i) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        sums[i] += __shfl_xor_sync(kAll, sums[i], distance);
      }
      if (threadIdx.x % 32 == 0 && sums[i] != 0) atomicAdd(block_words + lowest + i, sums[i]);
    }
  }

 private:
  static constexpr int kEmpty = -2;

  __device__ void Flush(Word* block_words) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (words_[i] != 0) atomicAdd(block_words + base_ + i, words_[i]);
      words_[i] = 0;
    }
  }

  int base_ = kEmpty;  // the index of words_[0]
  Word words_[4] = {};
};

}  // namespace ullage::kernels::device
