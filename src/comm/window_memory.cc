#include "comm/window_memory.h"

namespace ullage::comm {

WindowMemory::WindowMemory(std::int64_t bytes, int words, std::uint64_t nonce, bool shared)
    : bytes_(bytes), words_(words) {
  const std::int64_t total = HeaderBytes(words) + RoundUpToPage(bytes);
  region_ = shared ? OwnedRegion::Shared("ullage-window", total)
                   : OwnedRegion::Private("a window", total);
  reinterpret_cast<Word*>(region_.data())->store(nonce, std::memory_order_release);
}

void WindowMemory::Raise(int word, std::uint64_t value) {
  Word& target = reinterpret_cast<Word*>(region_.data())[1 + word];
  std::uint64_t current = target.load(std::memory_order_relaxed);
  while (current < value && !target.compare_exchange_weak(current, value, std::memory_order_release,
                                                          std::memory_order_relaxed)) {
  }
}

}  // namespace ullage::comm
