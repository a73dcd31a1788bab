// The memory that a rank shares with its peers, on both tiers, and the words that order it.
//
// Where operators run on the host everything lies in one Window. On CUDA a part of it is device
// memory that the peers of the host map (CUDA IPC), and what happens to either part is work in
// queues: a word is raised when the work before it is done, and a reader waits for the word before
// it adds its copy to a queue. So no queue of a device ever waits for another rank: a peer that
// dies leaves only a thread waiting, which notices.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "comm/comm.h"
#include "plan/window_plan.h"
#include "torchx/device.h"

namespace ullage::comm {

class TieredWindow {
 public:
  // Collective. The Comm must outlive it. Throws OutOfMemoryError; UnsupportedError where a part
  // in device memory is wanted and the ranks are on several hosts or the devices cannot reach each
  // other.
  TieredWindow(Comm& comm, const plan::WindowPlan& plan, c10::Device device);
  ~TieredWindow();
  TieredWindow(const TieredWindow&) = delete;
  TieredWindow& operator=(const TieredWindow&) = delete;

  // This rank's bytes at `place`; null in a dry run. Zero at creation.
  std::byte* At(plan::SharedPlace place) const;
  // Those of any rank, to read in place: on the host, or by kernels and copies of this rank's
  // device. Null for a rank of another host and in a dry run. Host pages that are touched count
  // towards this process's resident memory.
  const std::byte* Peer(int rank, plan::SharedPlace place) const;

  // Raises this rank's word now.
  void Signal(int word, std::uint64_t value) { window_->Signal(word, value); }
  // Raises it when the work that was added to `queue` so far is done.
  void SignalAfter(const torchx::Queue& queue, int word, std::uint64_t value);
  std::uint64_t Peek(int rank, int word) { return window_->Peek(rank, word); }
  void Wait(int rank, int word, std::uint64_t at_least, const char* what) {
    window_->Wait(rank, word, at_least, what);
  }
  // Waits for the word, then copies `bytes` bytes at `place` of that rank to `destination`, as work
  // of `queue`. A null destination only waits.
  void Read(int rank, int word, std::uint64_t at_least, plan::SharedPlace place,
            std::byte* destination, std::int64_t bytes, const torchx::Queue& queue,
            const char* what);

 private:
  void ShareDeviceMemory(std::int64_t bytes);
  void LockHostPart();

  Comm& comm_;
  const bool on_cuda_;
  std::unique_ptr<Window> window_;
  std::byte* device_ = nullptr;
  std::int64_t device_bytes_ = 0;
  std::vector<std::byte*> peers_;             // by rank: their device parts; null for this rank
  std::vector<const std::byte*> host_peers_;  // by rank: their host parts, page-locked
  std::vector<const void*> locked_;
  torchx::Queue signals_;
};

}  // namespace ullage::comm
