// DiskBackend on a few threads that call pread and pwrite; and the choice between the backends.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tiers/disk_backend.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

class ThreadBackend final : public DiskBackend {
 public:
  ThreadBackend(const DiskBackendSettings& settings, DiskCompletion complete)
      : fd_(settings.fd), complete_(std::move(complete)) {
    try {
      for (int i = 0; i < std::min(settings.threads, settings.queue_depth); ++i) {
        threads_.emplace_back([this] { Work(); });
      }
    } catch (const std::system_error& error) {
      if (threads_.empty()) {
        throw UnsupportedError(
            fmt::format("no thread for reading and writing a file: {}", error.what()),
            "raise the limit on processes (ulimit -u, or pids.max of the container)");
      }
    }
  }

  ~ThreadBackend() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
  }

  int Submit(const DiskOperation& operation) override {
    std::lock_guard lock(mutex_);
    waiting_.push_back(operation);
    changed_.notify_one();  // under the lock: what ends this object may follow at once
    return 0;
  }

  const char* name() const override { return "threads"; }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const DiskOperation operation = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const auto bytes = static_cast<std::size_t>(operation.bytes);
      const ssize_t moved = operation.action == DiskAction::kRead
                                ? ::pread(fd_, operation.memory, bytes, operation.offset)
                                : ::pwrite(fd_, operation.memory, bytes, operation.offset);
      complete_(operation.token, moved < 0 ? -errno : moved);
      lock.lock();
    }
  }

  const int fd_;
  const DiskCompletion complete_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<DiskOperation> waiting_;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace

std::unique_ptr<DiskBackend> MakeThreadBackend(const DiskBackendSettings& settings,
                                               DiskCompletion complete) {
  return std::make_unique<ThreadBackend>(settings, std::move(complete));
}

std::unique_ptr<DiskBackend> MakeBestBackend(const DiskBackendSettings& settings,
                                             DiskCompletion complete) {
  std::string refusal;
  if (auto backend = MakeUringBackend(settings, complete, refusal)) return backend;
  LogWarn("tiers", fmt::format("io_uring is refused here ({}); the disk tier reads and writes "
                               "with {} threads instead",
                               refusal, std::min(settings.threads, settings.queue_depth)));
  return MakeThreadBackend(settings, std::move(complete));
}

}  // namespace ullage::tiers
