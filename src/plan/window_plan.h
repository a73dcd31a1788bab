// What a rank puts into the memory that its peers may read, and the signal words that order it.
// The same on every rank, so a place is enough to find a peer's bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ullage::plan {

// Where bytes lie in the window of each rank: an offset in its part in host memory, or in the one
// in device memory, which there is only when operators run on a CUDA device.
struct SharedPlace {
  bool on_device = false;
  std::int64_t offset = -1;

  bool exists() const { return offset >= 0; }
  SharedPlace operator+(std::int64_t bytes) const { return {on_device, offset + bytes}; }
};

// Where a rank's gradients of one unit lie until their owners have read them. One for each unit.
struct Descriptor {
  std::uint64_t backward = 0;  // which backward pass they are of, counted from 1
  std::int64_t offset = 0;     // beside the staging ring; kAllZero: no gradient arrived
};
inline constexpr std::int64_t kAllZero = -1;

struct WindowPlan {
  // Weights of unit u: all of them when the unit is resident, else the owned slice. No place on
  // one rank, where nobody reads them.
  std::vector<SharedPlace> weights;
  // fp32 gradient sums of the owned slice of unit u; no place when peers never read them.
  std::vector<SharedPlace> sums;
  // Gradients of unit u on their way: a place of its own, or none when it shares the staging ring.
  std::vector<SharedPlace> own_staging;
  SharedPlace staging_ring;
  std::int64_t descriptors = 0;  // in the part in host memory
  // Bytes of the two parts.
  std::int64_t host_bytes = 0;
  std::int64_t device_bytes = 0;

  // Signal words. Version of the weights of unit u.
  int version(int unit) const { return unit; }
  // Backward pass whose gradients of unit u this rank has laid out, or has summed.
  int published(int unit) const { return units + unit; }
  int consumed(int unit) const { return 2 * units + unit; }
  // Version of unit u of which this rank has read its peers' slices.
  int fetched(int unit) const { return 3 * units + unit; }
  // Backward pass that this rank has gone through, and of which its sums are complete: on CUDA the
  // second is later.
  int backward_done() const { return 4 * units; }
  int sums_complete() const { return 4 * units + 1; }
  int late_total() const { return 4 * units + 2; }  // late contributions since the start
  int sums_read() const { return 4 * units + 3; }   // update up to which peers' sums were read
  int words() const { return 4 * units + 4; }

  int units = 0;
};

WindowPlan MakeWindowPlan(const Plan& plan);

// What a rank allocates for itself on `tier`: the bytes of the plan less those in the window.
std::int64_t BytesBesideWindow(const Plan& plan, const WindowPlan& window, int rank, Tier tier);

}  // namespace ullage::plan
