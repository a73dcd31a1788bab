// DiskBackend on io_uring. Any thread submits; one thread takes the completions.
#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tiers/disk_backend.h"

namespace ullage::tiers {
namespace {

using std::chrono::milliseconds;

// A ring that ends itself. Does not move: liburing keeps pointers into it.
struct Ring {
  io_uring ring{};
  bool made = false;

  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (made) io_uring_queue_exit(&ring);
  }
};

class UringBackend final : public DiskBackend {
 public:
  UringBackend(const DiskBackendSettings& settings, DiskCompletion complete,
               std::unique_ptr<Ring> ring)
      : settings_(settings),
        complete_(std::move(complete)),
        owner_(std::move(ring)),
        ring_(&owner_->ring),
        reaper_([this] { Reap(); }) {}

  ~UringBackend() override {
    const auto stop = [this](io_uring_sqe* entry) {
      io_uring_prep_nop(entry);
      io_uring_sqe_set_data(entry, this);
    };
    while (Enqueue(stop) != 0) std::this_thread::sleep_for(milliseconds(1));
  }

  int Submit(const DiskOperation& operation) override {
    return Enqueue([&](io_uring_sqe* entry) {
      const auto bytes = static_cast<unsigned>(operation.bytes);
      const auto offset = static_cast<__u64>(operation.offset);
      if (operation.action == DiskAction::kRead) {
        io_uring_prep_read(entry, settings_.fd, operation.memory, bytes, offset);
      } else {
        io_uring_prep_write(entry, settings_.fd, operation.memory, bytes, offset);
      }
      // Through the page cache the copy would be made by the submitting thread.
      if (!settings_.direct) io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
      io_uring_sqe_set_data(entry, operation.token);
    });
  }

  const char* name() const override { return "io_uring"; }

 private:
  template <typename Fill>
  int Enqueue(const Fill& fill) {
    constexpr int kTries = 1000;
    std::lock_guard lock(mutex_);
    io_uring_sqe* entry = io_uring_get_sqe(ring_);
    if (entry == nullptr) return EBUSY;
    fill(entry);
    int result = 0;
    for (int i = 0; i < kTries; ++i) {
      result = io_uring_submit(ring_);
      if (result > 0) return 0;
      if (result != -EINTR) std::this_thread::sleep_for(milliseconds(1));  // out of resources
    }
    // The kernel did not take it and will with the next one: then it must be nothing.
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, nullptr);
    return result == 0 ? EBUSY : -result;
  }

  void Reap() {
    while (true) {
      io_uring_cqe* entry = nullptr;
      if (const int error = io_uring_wait_cqe(ring_, &entry); error != 0) {
        if (error != -EINTR) std::this_thread::sleep_for(milliseconds(1));
        continue;
      }
      void* token = io_uring_cqe_get_data(entry);
      const std::int64_t result = entry->res;
      io_uring_cqe_seen(ring_, entry);
      if (token == this) return;
      if (token != nullptr) complete_(token, result);
    }
  }

  const DiskBackendSettings settings_;
  const DiskCompletion complete_;
  const std::unique_ptr<Ring> owner_;
  io_uring* const ring_;
  std::mutex mutex_;  // of the submission queue; completions are the reaper's alone
  std::jthread reaper_;
};

bool KnowsReadAndWrite(io_uring* ring) {
  const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> probe(
      io_uring_get_probe_ring(ring), io_uring_free_probe);
  return probe != nullptr && io_uring_opcode_supported(probe.get(), IORING_OP_READ) &&
         io_uring_opcode_supported(probe.get(), IORING_OP_WRITE);
}

}  // namespace

std::unique_ptr<DiskBackend> MakeUringBackend(const DiskBackendSettings& settings,
                                              DiskCompletion complete, std::string& refusal) {
  // Twice the depth leaves room for entries that the kernel did not take.
  const auto entries = static_cast<unsigned>(settings.queue_depth) * 2;
  auto ring = std::make_unique<Ring>();
  if (const int error = io_uring_queue_init(entries, &ring->ring, 0); error != 0) {
    refusal = fmt::format("io_uring_setup: {}", std::strerror(-error));
    return nullptr;
  }
  ring->made = true;
  if (!KnowsReadAndWrite(&ring->ring)) {
    refusal = "this kernel's io_uring cannot read and write";
    return nullptr;
  }
  try {
    return std::make_unique<UringBackend>(settings, std::move(complete), std::move(ring));
  } catch (const std::system_error& error) {
    refusal = fmt::format("no thread for its completions: {}", error.what());
    return nullptr;
  }
}

}  // namespace ullage::tiers
