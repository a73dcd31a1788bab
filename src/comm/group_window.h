// The window of a rank among others: shared memory within the host, TCP beyond it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/group.h"
#include "comm/window.h"
#include "comm/window_memory.h"

namespace ullage::comm {

// What the ranks tell each other about their part of a new window. Sent as bytes.
struct WindowOffer {
  std::int64_t bytes = 0;
  std::uint64_t nonce = 0;
  std::int32_t words = 0;
  std::int32_t fd = -1;  // of its memory, when shared
};

class GroupWindow final : public Window {
 public:
  // `id` is the same on all ranks. Opens the memory of local peers. Throws CommError.
  GroupWindow(std::shared_ptr<Group> group, std::uint64_t id, std::shared_ptr<WindowMemory> memory,
              const std::vector<WindowOffer>& offers);
  ~GroupWindow() override;

  std::byte* data() override { return memory_->data(); }
  std::int64_t bytes() const override { return memory_->bytes(); }
  const std::byte* Peer(int rank) override;
  void Signal(int word, std::uint64_t value) override;
  std::uint64_t Peek(int rank, int word) override;
  void Wait(int rank, int word, std::uint64_t at_least, const char* what) override;
  void Read(int rank, int word, std::uint64_t at_least, std::int64_t offset,
            std::span<std::byte> destination, const char* what) override;

 private:
  // A peer's part.
  struct Part {
    WindowOffer offer;
    PeerRegion region;
    Mapping header;
    Mapping data;  // mapped when Peer() asks for it
  };

  void CheckArguments(int rank, int word) const;
  std::uint64_t LocalValue(int rank, int word) const;
  void WaitLocal(int rank, int word, std::uint64_t at_least, const char* what);
  // Waits, and reads where there is a destination. The offset counts only then.
  void AskRemote(Ask ask, int rank, int word, std::uint64_t at_least, std::int64_t offset,
                 std::span<std::byte> destination, const char* what);
  std::string Where(int rank, int word, std::uint64_t at_least, const char* what) const;

  const std::shared_ptr<Group> group_;
  const std::uint64_t id_;
  const std::shared_ptr<WindowMemory> memory_;
  std::vector<Part> parts_;
  std::mutex map_mutex_;
};

}  // namespace ullage::comm
