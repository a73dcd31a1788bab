// How the gradients of one unit get from every rank to the owners of its slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/tiered_window.h"
#include "grads/sums.h"
#include "memory/buffer.h"
#include "plan/window_plan.h"

namespace ullage::grads {

// Used by one thread. Units are reserved and sent in one fixed order on all ranks.
class SliceExchange {
 public:
  virtual ~SliceExchange() = default;

  // Opens backward pass number `backward`, counted from 1.
  virtual void Begin(std::uint64_t backward) = 0;
  // Zero-filled memory for the gradients of `unit` (padded numel, in the weight's dtype), valid
  // until the unit has been sent. Null in a dry run.
  virtual std::byte* Reserve(int unit) = 0;
  // The unit is complete on this rank: owners may have it. Without `has_gradients` it counts as
  // zeros and need not have been reserved.
  virtual void Send(int unit, bool has_gradients) = 0;
  // Adds what has arrived to the sums, without waiting.
  virtual void Progress() = 0;
  // Adds all units of this backward pass to the sums; waits for the peers.
  virtual void Finish() = 0;
};

// Trainable units in the order in which they are exchanged: backward through the model.
std::vector<int> ExchangeOrder(const plan::Plan& plan);

// Where the owner's sums are: slice_numel floats for each unit.
using SumsOf = std::function<float*(int unit)>;

// Ranks of one host: gradients are laid out in shared memory and read in place by their owners.
std::unique_ptr<SliceExchange> MakeWindowExchange(const plan::Plan& plan,
                                                  const plan::WindowPlan& window_plan,
                                                  comm::Comm& comm, comm::TieredWindow& window,
                                                  memory::Memory& memory, Sums& sums);

// Ranks of several hosts: an all-to-all for each bucket.
std::unique_ptr<SliceExchange> MakeCollectiveExchange(const plan::Plan& plan, comm::Comm& comm,
                                                      memory::Memory& memory, SumsOf sums);

// One unit through all-to-alls, bucket by bucket: `gradients` (padded numel) of every rank are
// added to the owners' `sums` in rank order. `scratch` holds two times world_size buckets.
void ExchangeByBuckets(const plan::Plan& plan, comm::Comm& comm, int unit,
                       const std::byte* gradients, float* sums, memory::Buffer& scratch,
                       std::uint32_t item);

// Bytes of that scratch.
std::int64_t BucketScratchBytes(const plan::Plan& plan);

}  // namespace ullage::grads
