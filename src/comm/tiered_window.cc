#include "comm/tiered_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/log.h"
#include "comm/host.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

constexpr std::uint32_t kOfferItem = 0x44000000;
constexpr std::uint32_t kOpenedItem = 0x44000001;

// What a rank tells its peers about its device memory. Sent as bytes.
struct Offer {
  torchx::DeviceHandle handle{};
  ProcessId process;
  bool allocated = false;
};

}  // namespace

TieredWindow::TieredWindow(Comm& comm, const plan::WindowPlan& plan, c10::Device device)
    : comm_(comm),
      on_cuda_(device.is_cuda()),
      window_(comm.CreateWindow(plan.host_bytes, plan.words())),
      peers_(static_cast<std::size_t>(comm.world_size())),
      host_peers_(static_cast<std::size_t>(comm.world_size())) {
  if (!on_cuda_ || comm.world_size() == 1) return;
  signals_ = torchx::Queue::Beside(device);
  if (!comm.AllLocal()) {
    throw UnsupportedError("ranks on CUDA devices of several hosts: not offered yet",
                           "use the devices of one host, or --device cpu");
  }
  try {
    ShareDeviceMemory(plan.device_bytes);
    LockHostPart();
  } catch (...) {
    for (std::byte* peer : peers_) torchx::ClosePeerMemory(peer);
    torchx::FreeShareable(device_, device_bytes_);
    throw;
  }
}

TieredWindow::~TieredWindow() {
  if (!on_cuda_ || comm_.world_size() == 1) return;
  try {
    signals_.Finish();
  } catch (const std::exception& error) {
    LogWarn("comm", fmt::format("at the end of a window: {}", error.what()));
  }
  for (const void* data : locked_) torchx::UnlockHostMemory(data);
  for (std::byte* peer : peers_) torchx::ClosePeerMemory(peer);
  torchx::FreeShareable(device_, device_bytes_);
}

void TieredWindow::ShareDeviceMemory(std::int64_t bytes) {
  if (bytes == 0) return;
  device_bytes_ = bytes;
  Offer mine;
  device_ = static_cast<std::byte*>(torchx::AllocateShareable(bytes));
  mine.allocated = device_ != nullptr;
  if (mine.allocated) mine.handle = torchx::HandleOf(device_);
  mine.process = ThisProcess();
  std::vector<Offer> offers(peers_.size());
  comm_.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(offers)),
                  kOfferItem);
  for (int rank = 0; rank < comm_.world_size(); ++rank) {
    const Offer& offer = offers[static_cast<std::size_t>(rank)];
    if (!offer.allocated) {
      throw OutOfMemoryError(
          fmt::format("out of device memory on rank {}: {} ({} bytes) that its peers read (weights "
                      "and gradients on their way) were refused",
                      rank, FormatBytes(bytes), bytes),
          "offload with zero_optimization.offload_optimizer and offload_param, or use more ranks "
          "with a higher zero_optimization.stage");
    }
    if (rank == comm_.rank()) continue;
    if (offer.process.pid == mine.process.pid) {
      throw UnsupportedError("ranks on CUDA devices that are threads of one process",
                             "start a process for each rank");
    }
    peers_[static_cast<std::size_t>(rank)] =
        static_cast<std::byte*>(torchx::OpenPeerMemory(offer.handle));
  }
  // Nobody may free its part before all have opened it.
  comm_.Barrier(kOpenedItem);
}

void TieredWindow::LockHostPart() {
  // Words and descriptors alone are read by the CPU.
  constexpr std::int64_t kWorthLocking = 1 << 20;
  if (window_->bytes() < kWorthLocking) return;
  std::string refused;
  for (int rank = 0; rank < comm_.world_size(); ++rank) {
    const std::byte* data = window_->Peer(rank);
    host_peers_[static_cast<std::size_t>(rank)] = data;
    const auto bytes = static_cast<std::size_t>(window_->bytes());
    const std::string reason = rank == comm_.rank() ? torchx::LockHostMemory(window_->data(), bytes)
                                                    : torchx::LockReadOnlyHostMemory(data, bytes);
    if (reason.empty()) {
      locked_.push_back(data);
    } else {
      refused = reason;
    }
  }
  if (refused.empty()) return;
  LogWarn("comm", fmt::format("offloaded weights that ranks read from each other ({} each) could "
                              "not be page-locked ({}): copies will be slower; raise the memlock "
                              "limit (ulimit -l)",
                              FormatBytes(window_->bytes()), refused));
}

std::byte* TieredWindow::At(plan::SharedPlace place) const {
  std::byte* part = place.on_device ? device_ : window_->data();
  return part == nullptr ? nullptr : part + place.offset;
}

const std::byte* TieredWindow::Peer(int rank, plan::SharedPlace place) const {
  if (rank == comm_.rank()) return At(place);
  const std::byte* part =
      place.on_device ? peers_[static_cast<std::size_t>(rank)] : window_->Peer(rank);
  return part == nullptr ? nullptr : part + place.offset;
}

void TieredWindow::SignalAfter(const torchx::Queue& queue, int word, std::uint64_t value) {
  if (!queue.is_cuda() || !signals_.is_cuda()) return window_->Signal(word, value);
  // On a queue of its own, so that work behind it in `queue` does not wait for the call.
  signals_.After(queue.Mark());
  signals_.Call([window = window_.get(), word, value] { window->Signal(word, value); });
}

void TieredWindow::Read(int rank, int word, std::uint64_t at_least, plan::SharedPlace place,
                        std::byte* destination, std::int64_t bytes, const torchx::Queue& queue,
                        const char* what) {
  if (destination == nullptr) bytes = 0;
  if (!on_cuda_) {
    window_->Read(rank, word, at_least, std::max<std::int64_t>(place.offset, 0),
                  {destination, static_cast<std::size_t>(bytes)}, what);
    return;
  }
  window_->Wait(rank, word, at_least, what);
  queue.Copy(destination, Peer(rank, place), bytes);
}

}  // namespace ullage::comm
