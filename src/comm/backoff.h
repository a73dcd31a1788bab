// How a thread waits for a word in shared memory without burning a core that its peer needs.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace ullage::comm {

class Backoff {
 public:
  // Spins for a moment, then yields, then sleeps from 50 us up to 1 ms.
  void Pause() {
    if (pauses_ < kSpins) {
      ++pauses_;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else if (pauses_ < kSpins + kYields) {
      ++pauses_;
      sched_yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 2, kLongestSleep);
    }
  }
  // True once the wait has become long enough for system calls to cost nothing beside it.
  bool sleeping() const { return pauses_ >= kSpins + kYields; }

 private:
  static constexpr int kSpins = 200;
  static constexpr int kYields = 50;
  static constexpr std::chrono::microseconds kLongestSleep{1000};
  int pauses_ = 0;
  std::chrono::microseconds sleep_{50};
};

}  // namespace ullage::comm
