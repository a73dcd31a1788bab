// What a rank owns of a window: signal words and bytes, in one region that peers can open.
//
// The region begins with whole pages of header (nonce, then the words), then the bytes. Words are
// packed, not a cache line apart: they change once a step, and readers poll one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/region.h"

namespace ullage::comm {

class WindowMemory {
 public:
  static constexpr int kMostWords = 1 << 20;

  // `shared` when local peers will open it. Throws OutOfMemoryError.
  WindowMemory(std::int64_t bytes, int words, std::uint64_t nonce, bool shared);

  std::byte* data() const { return bytes_ == 0 ? nullptr : region_.data() + HeaderBytes(words_); }
  std::int64_t bytes() const { return bytes_; }
  int words() const { return words_; }
  int fd() const { return region_.fd(); }
  void Raise(int word, std::uint64_t value);  // keeps the larger, release order
  std::uint64_t Value(int word) const {
    return WordsOf(region_.data())[1 + word].load(std::memory_order_acquire);
  }

  // How a reader finds its way in a peer's region.
  static std::int64_t HeaderBytes(int words) {
    return RoundUpToPage((1 + words) * std::int64_t{8});
  }
  static std::uint64_t Nonce(const std::byte* header) {
    return WordsOf(header)[0].load(std::memory_order_acquire);
  }
  static std::uint64_t Value(const std::byte* header, int word) {
    return WordsOf(header)[1 + word].load(std::memory_order_acquire);
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 8);
  static const Word* WordsOf(const std::byte* header) {
    return reinterpret_cast<const Word*>(header);
  }

  OwnedRegion region_;
  std::int64_t bytes_;
  int words_;
};

}  // namespace ullage::comm
