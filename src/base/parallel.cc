#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ullage {
namespace {

using Body = std::function<void(std::int64_t, std::int64_t)>;

class Pool {
 public:
  explicit Pool(int helpers) {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Help(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body) {
    std::lock_guard turn(turn_);
    {
      std::lock_guard lock(mutex_);
      body_ = &body;
      next_ = begin;
      end_ = end;
      grain_ = grain;
      error_ = nullptr;
      ++job_;
      running_ = static_cast<int>(threads_.size());
    }
    work_.notify_all();
    TakeParts();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  void Help() {
    std::uint64_t seen = 0;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [&] { return stop_ || job_ != seen; });
        if (stop_) return;
        seen = job_;
      }
      TakeParts();
      std::lock_guard lock(mutex_);
      if (--running_ == 0) done_.notify_all();
    }
  }

  void TakeParts() {
    while (true) {
      const std::int64_t first = next_.fetch_add(grain_);
      if (first >= end_) return;
      try {
        (*body_)(first, std::min(first + grain_, end_));
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (error_ == nullptr) error_ = std::current_exception();
        next_ = end_;
      }
    }
  }

  std::mutex turn_;  // held for the time of one loop
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<std::thread> threads_;
  const Body* body_ = nullptr;
  std::atomic<std::int64_t> next_ = 0;
  std::int64_t end_ = 0;
  std::int64_t grain_ = 1;
  std::uint64_t job_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

std::mutex pool_mutex;
std::shared_ptr<Pool> pool;  // null: everything on the caller's thread
int workers = 1;

}  // namespace

void SetWorkers(int count) {
  std::lock_guard lock(pool_mutex);
  if (count == workers) return;
  workers = std::max(1, count);
  pool = workers > 1 ? std::make_shared<Pool>(workers - 1) : nullptr;
}

int Workers() {
  std::lock_guard lock(pool_mutex);
  return workers;
}

int UsableCores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void ParallelFor(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body) {
  if (begin >= end) return;
  std::shared_ptr<Pool> used;
  if (end - begin > grain) {
    std::lock_guard lock(pool_mutex);
    used = pool;
  }
  if (used != nullptr) return used->Run(begin, end, grain, body);
  for (std::int64_t first = begin; first < end; first += grain) {
    body(first, std::min(first + grain, end));
  }
}

}  // namespace ullage
