// Keeps what this process holds on its CUDA device within ullage.device_memory.
#pragma once

#include <cstdint>
#include <optional>

namespace ullage::engine {

// Limits torch's allocator to the budget less what lies outside it. The limit is the process's and
// goes with this object.
class DeviceCap {
 public:
  // Without `on_cuda` nothing is limited. On CUDA the allocator's segments grow in place from now
  // on, with a budget or without.
  DeviceCap(std::optional<std::int64_t> budget, bool on_cuda);
  ~DeviceCap();
  DeviceCap(const DeviceCap&) = delete;
  DeviceCap& operator=(const DeviceCap&) = delete;

  // Bytes outside the allocator as of now; 0 when nothing is limited.
  std::int64_t MeasureOutside() const;
  // Begins to limit, with so much of the budget outside.
  void Set(std::int64_t outside_bytes);
  // When the engine is made and at the end of a step: CUDA loads kernels when they are first used,
  // and with `has_windows` memory that other ranks read is outside torch's allocator, as planned.
  // What else is there beyond plan is logged, and lowers the limit.
  void Renew(bool has_windows);

 private:
  const std::optional<std::int64_t> budget_;
  const bool on_cuda_;
  std::int64_t outside_bytes_ = 0;
  int renewals_ = 0;
};

}  // namespace ullage::engine
