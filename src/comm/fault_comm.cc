#include "comm/fault_comm.h"

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::comm {
namespace {

using Call = FaultPlan::Entry::Call;

// Counts the calls and does the damage. Shared by the Comm and its windows, and thread-safe.
class Saboteur {
 public:
  Saboteur(std::unique_ptr<Comm> comm, FaultPlan plan)
      : comm_(std::move(comm)), plan_(std::move(plan)) {}

  Comm& comm() { return *comm_; }

  // True when the call is to be skipped.
  bool Skips(Call call) {
    const int number = counts_[static_cast<std::size_t>(call)].fetch_add(1);
    for (const FaultPlan::Entry& entry : plan_.entries) {
      if (entry.call != call || entry.number != number) continue;
      switch (entry.fault) {
        case Fault::kSkip:
          return true;
        case Fault::kHang:
          std::this_thread::sleep_for(comm_->timeout() * 3 / 2);
          break;
        case Fault::kDie:
          std::raise(SIGKILL);
          break;
        case Fault::kThrow: {
          const std::string text =
              fmt::format("rank {}: injected fault at call {}", comm_->rank(), number);
          comm_->Abort(text);
          throw CommError(text);
        }
      }
    }
    return false;
  }

 private:
  const std::unique_ptr<Comm> comm_;
  const FaultPlan plan_;
  std::array<std::atomic<int>, 3> counts_ = {};
};

class FaultWindow final : public Window {
 public:
  FaultWindow(std::shared_ptr<Saboteur> saboteur, std::unique_ptr<Window> window)
      : saboteur_(std::move(saboteur)), window_(std::move(window)) {}

  std::byte* data() override { return window_->data(); }
  std::int64_t bytes() const override { return window_->bytes(); }
  const std::byte* Peer(int rank) override { return window_->Peer(rank); }
  void Signal(int word, std::uint64_t value) override {
    if (!saboteur_->Skips(Call::kSignal)) window_->Signal(word, value);
  }
  std::uint64_t Peek(int rank, int word) override { return window_->Peek(rank, word); }
  void Wait(int rank, int word, std::uint64_t at_least, const char* what) override {
    if (!saboteur_->Skips(Call::kRead)) window_->Wait(rank, word, at_least, what);
  }
  void Read(int rank, int word, std::uint64_t at_least, std::int64_t offset,
            std::span<std::byte> destination, const char* what) override {
    if (saboteur_->Skips(Call::kRead)) return;
    window_->Read(rank, word, at_least, offset, destination, what);
  }

 private:
  const std::shared_ptr<Saboteur> saboteur_;  // outlives the window: it holds the Comm
  const std::unique_ptr<Window> window_;
};

class FaultComm final : public Comm {
 public:
  explicit FaultComm(std::shared_ptr<Saboteur> saboteur) : saboteur_(std::move(saboteur)) {}

  int rank() const override { return comm().rank(); }
  int world_size() const override { return comm().world_size(); }
  bool IsLocal(int rank) const override { return comm().IsLocal(rank); }
  std::chrono::milliseconds timeout() const override { return comm().timeout(); }

  void Barrier(std::uint32_t item) override {
    if (!Skips()) comm().Barrier(item);
  }
  void AllReduceSum(std::span<std::int64_t> values, std::uint32_t item) override {
    if (!Skips()) comm().AllReduceSum(values, item);
  }
  void AllReduceMin(std::span<std::int64_t> values, std::uint32_t item) override {
    if (!Skips()) comm().AllReduceMin(values, item);
  }
  void AllReduceMax(std::span<std::int64_t> values, std::uint32_t item) override {
    if (!Skips()) comm().AllReduceMax(values, item);
  }
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::uint32_t item) override {
    if (!Skips()) comm().AllGather(mine, all, item);
  }
  void Broadcast(std::span<std::byte> bytes, int root, std::uint32_t item) override {
    if (!Skips()) comm().Broadcast(bytes, root, item);
  }
  void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                std::int64_t chunk_bytes, std::uint32_t item) override {
    if (!Skips()) comm().AllToAll(send, receive, chunk_bytes, item);
  }
  std::unique_ptr<Window> CreateWindow(std::int64_t bytes, int words) override {
    if (Skips()) throw CommError(fmt::format("rank {}: injected fault: no window", rank()));
    return std::make_unique<FaultWindow>(saboteur_, comm().CreateWindow(bytes, words));
  }
  void Abort(const std::string& reason) noexcept override { comm().Abort(reason); }

 private:
  bool Skips() { return saboteur_->Skips(Call::kCollective); }
  Comm& comm() const { return saboteur_->comm(); }

  const std::shared_ptr<Saboteur> saboteur_;
};

}  // namespace

std::unique_ptr<Comm> MakeFaultComm(std::unique_ptr<Comm> comm, FaultPlan plan) {
  return std::make_unique<FaultComm>(std::make_shared<Saboteur>(std::move(comm), std::move(plan)));
}

}  // namespace ullage::comm
