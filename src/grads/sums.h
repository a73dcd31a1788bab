// The gradient sums of what this rank owns: where they lie, and how gradients get there on one
// rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/tiered_window.h"
#include "grads/gradient_batch.h"
#include "grads/landing.h"
#include "memory/buffer.h"
#include "plan/window_plan.h"
#include "torchx/device.h"

namespace ullage::grads {

// The sums of one unit: slice_numel elements of `dtype` on the tier of the unit's home. No data in
// a dry run.
struct UnitSums {
  DType dtype = DType::kFloat32;
  std::byte* data = nullptr;
};

class Sums {
 public:
  // All references must outlive this.
  Sums(const plan::Plan& plan, const plan::WindowPlan& window_plan, int rank,
       comm::TieredWindow& window, memory::Memory& memory);

  UnitSums Of(int unit) const;

  // On one rank: adds a gradient of `parameter`, which lies at `member` of `unit`. On CUDA the work
  // is only queued, or done with that of others (Note [Batches of gradients]).
  void Add(int parameter, int unit, const layout::Member& member, const at::Tensor& gradient);
  // On several ranks: adds this rank's slice of `unit` as each rank laid it out, one after the
  // other. On CUDA as work of `queue`, after which the slices may be overwritten.
  void AddSlices(int unit, const std::vector<const std::byte*>& slices, const torchx::Queue& queue);
  // A backward pass ends: queues what waits for others.
  void Flush();
  // A pass begins; as many are `expected` in a step. More may come.
  void BeginPass(std::int64_t expected) { is_last_pass_ = ++passes_ >= expected; }
  // Queued work has reached the host's memory, and gradients that did not come count as zeros.
  void Complete();
  // All sums are zero again; but those of units that are updated beside (plan) only when ClearUnit
  // says so.
  void Clear();
  // Any thread, while nothing is added to the unit.
  void ClearUnit(int unit);

  // A pass was given up: gradients that wait for others (Note [Batches of gradients]) go nowhere.
  void DropHeld();

  // By parameter: a gradient of it came since the last Clear or TakeCame, which forgets that.
  std::vector<bool> TakeCame() {
    return std::exchange(came_, std::vector<bool>(came_.size(), false));
  }
  void NoteCame(const std::vector<bool>& came);
  // Whether the next gradient of any parameter leaves the sums' types and places as they are.
  bool IsSteady() const;
  // Changes when sums come to lie elsewhere.
  std::int64_t layout() const { return layout_; }

  // For gradients that are kept as they come and leave the device: called with each while it is
  // there, on the operators' queue. Sums that are measured from such calls need not be read again.
  // `restart` tells that sums of `unit` have become fp32, or others, and must be read from there.
  struct Listener {
    std::function<void(int parameter, DType dtype, const void* gradient, std::int64_t numel)> came;
    std::function<void(int unit)> restart;
    // Of fp32 sums on the host: the squares of those of `parameter`, which the last pass has made
    // complete. On another thread, before Complete returns.
    std::function<void(int parameter, const kernels::SquareSum& squares)> summed;
  };
  void Listen(Listener listener) { listener_ = std::move(listener); }
  // Somebody changed the sums of `parameter`: what was measured before holds no more.
  void NoteWritten(int unit, int parameter) {
    came_[static_cast<std::size_t>(parameter)] = true;
    if (listener_.restart) listener_.restart(unit);
  }

 private:
  void HoldDry(int parameter, const at::Tensor& gradient, DType sums_dtype);
  void Promote(int parameter, int unit);
  // Whether the first gradient of a step is written over what the sums of `unit` were, so that they
  // need no zeros.
  bool IsOverwritten(int unit) const {
    return Of(unit).dtype != DType::kFloat32 ||
           (landing_ != nullptr && plan_.world_size == 1 && TierOf(unit) == plan::Tier::kHost);
  }
  plan::Tier TierOf(int unit) const { return plan_.units[static_cast<std::size_t>(unit)].home; }

  const plan::Plan& plan_;
  const plan::WindowPlan& window_plan_;
  comm::TieredWindow& window_;
  memory::Memory& memory_;
  Listener listener_;
  std::vector<memory::Claim> claims_;
  std::vector<memory::Buffer> own_;  // of units whose sums peers do not read
  std::vector<bool> promoted_;       // by unit: fp32 although the plan keeps gradients as they come
  std::vector<bool> came_;           // by parameter, since the last Clear
  std::int64_t layout_ = 0;
  std::int64_t passes_ = 0;  // since the last Clear
  bool is_last_pass_ = false;
  bool warned_of_promotion_ = false;
  std::optional<GradientBatch> batch_;  // of sums on a CUDA device
  memory::Buffer crossing_;             // Note [Crossing]
  std::unique_ptr<Landing> landing_;    // where gradients cross to the host
};

}  // namespace ullage::grads
