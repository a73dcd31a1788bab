#include "engine/device_cap.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/log.h"
#include "torchx/device_memory.h"
#include "ullage/error.h"

namespace ullage::engine {
namespace {

constexpr int kRenewals = 3;  // after that nothing new comes
constexpr int kPatience = 25;

}  // namespace

DeviceCap::DeviceCap(std::optional<std::int64_t> budget, bool on_cuda)
    : budget_(budget), on_cuda_(on_cuda) {
  if (on_cuda_) torchx::PreferGrowingSegments();
}

DeviceCap::~DeviceCap() {
  if (on_cuda_ && budget_) torchx::LimitDeviceMemory(0);
}

std::int64_t DeviceCap::MeasureOutside() const {
  if (!on_cuda_ || !budget_) return 0;
  return std::max<std::int64_t>(0, torchx::ReadDeviceMemory().outside());
}

void DeviceCap::Set(std::int64_t outside_bytes) {
  if (!on_cuda_ || !budget_) return;
  if (outside_bytes >= *budget_) {
    throw OutOfMemoryError(
        fmt::format("ullage.device_memory: {} do not suffice: {} lie outside torch's allocator "
                    "already",
                    FormatBytes(*budget_), FormatBytes(outside_bytes)),
        "end other processes on this device, or raise ullage.device_memory");
  }
  outside_bytes_ = outside_bytes;
  torchx::LimitDeviceMemory(*budget_ - outside_bytes_);
}

void DeviceCap::Renew(bool has_windows) {
  if (!on_cuda_ || !budget_ || renewals_ == kRenewals) return;
  ++renewals_;
  std::int64_t outside = MeasureOutside();
  // The driver takes a moment to give back what a process that has just ended had.
  for (int i = 0; i < kPatience && outside > outside_bytes_; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    outside = MeasureOutside();
  }
  // The limit is only ever lowered: what lies outside may have been given by hand, with a margin.
  if (outside <= outside_bytes_) return;
  if (!has_windows) {
    LogInfo("engine", fmt::format("{} lie outside torch's allocator, {} more than planned, of this "
                                  "or another process: operators have as much less of "
                                  "ullage.device_memory",
                                  FormatBytes(outside), FormatBytes(outside - outside_bytes_)));
  }
  Set(outside);
}

}  // namespace ullage::engine
