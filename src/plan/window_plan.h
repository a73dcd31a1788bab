// What a rank puts into the memory that its peers may read, and the signal words that order it.
// The same on every rank, so an offset is enough to find a peer's bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ullage::plan {

// Where a rank's gradients of one unit lie until their owners have read them. One for each unit.
struct Descriptor {
  std::uint64_t backward = 0;  // which backward pass they are of, counted from 1
  std::int64_t offset = 0;     // in the window; kAllZero: no gradient arrived
};
inline constexpr std::int64_t kAllZero = -1;

struct WindowPlan {
  // Bytes. Weights of unit u: all of them when the unit is resident, else the owned slice. -1 on
  // one rank, where nobody reads them.
  std::vector<std::int64_t> weights;
  // fp32 gradient sums of the owned slice of unit u; -1 when peers never read them.
  std::vector<std::int64_t> sums;
  // Gradients of unit u on their way: a place of its own, or -1 when it shares the staging ring.
  std::vector<std::int64_t> own_staging;
  std::int64_t staging_ring = 0;
  std::int64_t descriptors = 0;
  std::int64_t total = 0;

  // Signal words. Version of the weights of unit u.
  int version(int unit) const { return unit; }
  // Backward pass whose gradients of unit u this rank has laid out, or has summed.
  int published(int unit) const { return units + unit; }
  int consumed(int unit) const { return 2 * units + unit; }
  int backward_done() const { return 3 * units; }     // backward pass that this rank has finished
  int late_total() const { return 3 * units + 1; }    // late contributions since the start
  int sums_read() const { return 3 * units + 2; }     // update up to which peers' sums were read
  int weights_read() const { return 3 * units + 3; }  // update up to which new weights were read
  int words() const { return 3 * units + 4; }

  int units = 0;
};

WindowPlan MakeWindowPlan(const Plan& plan);

}  // namespace ullage::plan
