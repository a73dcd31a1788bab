#include "comm/lone_comm.h"

#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "comm/backoff.h"
#include "comm/sizes.h"
#include "comm/window_memory.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

constexpr std::chrono::milliseconds kUsualTimeout = std::chrono::minutes(5);

void CopyBytes(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memmove(to, from.data(), from.size());
}

[[noreturn]] void ThrowNoSuchRank(int rank, int world_size) {
  throw ConfigError(fmt::format("no rank {} among {}", rank, world_size),
                    "ranks are numbered from 0");
}

// Whether Abort() was called, for the Comm and its windows.
class Stop {
 public:
  void Set(const std::string& reason) noexcept try {
    const std::lock_guard lock(mutex_);
    if (!stopped_) reason_ = reason;
    stopped_ = true;
  } catch (...) {
    stopped_ = true;  // without the reason: out of memory
  }
  void Check(int rank) {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw CommError(fmt::format("rank {}: the group was stopped: {}", rank, reason_));
  }

 private:
  std::mutex mutex_;
  bool stopped_ = false;
  std::string reason_;
};

// A window that nobody else sees, in private memory.
class SingleWindow final : public Window {
 public:
  SingleWindow(std::int64_t bytes, int words, std::chrono::milliseconds timeout,
               std::shared_ptr<Stop> stop)
      : memory_(bytes, words, 0, /*shared=*/false), timeout_(timeout), stop_(std::move(stop)) {}

  std::byte* data() override { return memory_.data(); }
  std::int64_t bytes() const override { return memory_.bytes(); }
  const std::byte* Peer(int rank) override { return rank == 0 ? memory_.data() : nullptr; }
  void Signal(int word, std::uint64_t value) override {
    Check(0, word);
    memory_.Raise(word, value);
  }
  std::uint64_t Peek(int rank, int word) override {
    Check(rank, word);
    return memory_.Value(word);
  }
  // For a word that another thread of this rank raises.
  void Wait(int rank, int word, std::uint64_t at_least, const char* what) override {
    Check(rank, word);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (Backoff backoff; memory_.Value(word) < at_least; backoff.Pause()) {
      if (!backoff.sleeping()) continue;
      stop_->Check(0);
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw CommError(
          fmt::format("rank 0, alone, waiting for {} (word {} to reach {}): not within {:g} s; the "
                      "word stands at {}",
                      what, word, at_least, static_cast<double>(timeout_.count()) / 1000,
                      memory_.Value(word)),
          "if this rank is only slow, raise ullage.timeout");
    }
  }
  void Read(int rank, int word, std::uint64_t at_least, std::int64_t offset,
            std::span<std::byte> destination, const char* what) override {
    Wait(rank, word, at_least, what);
    const auto size = static_cast<std::int64_t>(destination.size());
    if (offset < 0 || offset > bytes() || size > bytes() - offset) {
      throw ConfigError(
          fmt::format("{}: bytes {} to {} of a window of {}", what, offset, offset + size, bytes()),
          "");
    }
    if (size > 0) CopyBytes({memory_.data() + offset, destination.size()}, destination.data());
  }

 private:
  void Check(int rank, int word) const {
    if (rank != 0) ThrowNoSuchRank(rank, 1);
    if (word < 0 || word >= memory_.words()) {
      throw ConfigError(fmt::format("no word {} in a window of {}", word, memory_.words()), "");
    }
  }

  WindowMemory memory_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Stop> stop_;
};

// Holds nothing; every word has been raised already.
class FakeWindow final : public Window {
 public:
  explicit FakeWindow(std::int64_t bytes) : bytes_(bytes) {}
  std::byte* data() override { return nullptr; }
  std::int64_t bytes() const override { return bytes_; }
  const std::byte* Peer(int) override { return nullptr; }
  void Signal(int, std::uint64_t) override {}
  std::uint64_t Peek(int, int) override { return ~std::uint64_t{0}; }
  void Wait(int, int, std::uint64_t, const char*) override {}
  void Read(int, int, std::uint64_t, std::int64_t, std::span<std::byte>, const char*) override {}

 private:
  std::int64_t bytes_;
};

// Collectives that return at once: every rank contributes what this one does, or nothing where
// the result would be a number (a sum stays this rank's own).
class LoneComm final : public Comm {
 public:
  LoneComm(int rank, int world_size, bool fake, std::chrono::milliseconds timeout)
      : rank_(rank), world_size_(world_size), fake_(fake), timeout_(timeout) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  bool IsLocal(int) const override { return true; }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  void Barrier(std::uint32_t) override { CheckStopped(); }
  void AllReduceSum(std::span<std::int64_t>, std::uint32_t) override { CheckStopped(); }
  void AllReduceMin(std::span<std::int64_t>, std::uint32_t) override { CheckStopped(); }
  void AllReduceMax(std::span<std::int64_t>, std::uint32_t) override { CheckStopped(); }
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::uint32_t) override {
    CheckAllGather(mine, all, world_size_);
    CheckStopped();
    for (int r = 0; r < world_size_; ++r) {
      CopyBytes(mine, all.data() + mine.size() * static_cast<std::size_t>(r));
    }
  }
  void Broadcast(std::span<std::byte>, int root, std::uint32_t) override {
    CheckRoot(root, world_size_);
    CheckStopped();
  }
  void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                std::int64_t chunk_bytes, std::uint32_t) override {
    CheckAllToAll(send, receive, chunk_bytes, world_size_);
    CheckStopped();
    CopyBytes(send, receive.data());
  }
  std::unique_ptr<Window> CreateWindow(std::int64_t bytes, int words) override {
    CheckWindow(bytes, words);
    CheckStopped();
    if (fake_) return std::make_unique<FakeWindow>(bytes);
    return std::make_unique<SingleWindow>(bytes, words, timeout_, stop_);
  }
  void Abort(const std::string& reason) noexcept override { stop_->Set(reason); }

 private:
  void CheckStopped() { stop_->Check(rank_); }

  const int rank_;
  const int world_size_;
  const bool fake_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Stop> stop_ = std::make_shared<Stop>();
};

}  // namespace

std::unique_ptr<Comm> MakeSingleComm(std::chrono::milliseconds timeout) {
  return std::make_unique<LoneComm>(0, 1, /*fake=*/false, timeout);
}

std::unique_ptr<Comm> MakeSingleComm() {
  return MakeSingleComm(kUsualTimeout);
}

std::unique_ptr<Comm> MakeFakeComm(int rank, int world_size) {
  if (rank < 0 || rank >= world_size) ThrowNoSuchRank(rank, world_size);
  return std::make_unique<LoneComm>(rank, world_size, /*fake=*/true, kUsualTimeout);
}

}  // namespace ullage::comm
