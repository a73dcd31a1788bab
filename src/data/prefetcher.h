// Values made ahead of their use on one thread of their own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace ullage::data {

// Calls `produce` on its thread until that returns nullopt or throws, at most `depth` values ahead.
// Next() gives the values in order, then nullopt for ever, or throws what `produce` threw, also for
// ever. One consumer. May be destroyed at any moment; that waits for the running call to end.
template <typename T>
class Prefetcher {
 public:
  Prefetcher(std::function<std::optional<T>()> produce, std::size_t depth)
      : produce_(std::move(produce)), depth_(depth), thread_([this] { Run(); }) {}

  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  std::optional<T> Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
    if (ready_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<T> value = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return value;
  }

 private:
  void Run() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ready_.size() < depth_ || stopping_; });
        if (stopping_) return;
      }
      bool more = false;
      try {
        more = Keep(produce_());
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
        ended_ = true;
      }
      changed_.notify_all();
      if (!more) return;
    }
  }

  // False for the nullopt that ends the values. A function of its own: in a loop, g++ 12.2 from -O1
  // on drops the store that makes an optional<int> empty when the call assigned to it throws
  // (right with -fno-tree-dse), so an optional must not be looked at behind the catch.
  bool Keep(std::optional<T> value) {
    const std::lock_guard lock(mutex_);
    if (value) {
      ready_.push_back(std::move(*value));
    } else {
      ended_ = true;
    }
    return value.has_value();
  }

  std::function<std::optional<T>()> produce_;  // used by the thread only
  const std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> ready_;
  std::exception_ptr error_;
  bool ended_ = false;     // `produce_` will not be called again
  bool stopping_ = false;  // the destructor waits
  std::thread thread_;     // last: it uses all of the above
};

}  // namespace ullage::data
