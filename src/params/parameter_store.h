// Managed parameters: the model's weights, present where and while operators need them.
//
// The store binds the model's parameter tensors to storages of its own. Weights of resident units
// lie on the device for good. Those of the others are gathered into a ring on the device when an
// operator asks (torchx/interception.h) or shortly before, each rank reading its own part from
// where it is at home and its peers' slices through the window, and give way to others later.
// Weights change only between BeginUpdate and EndUpdate, and by the user's own writes; each slice
// has a version that readers wait for.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/tiered_window.h"
#include "layout/ring.h"
#include "memory/buffer.h"
#include "params/use_sequence.h"
#include "plan/window_plan.h"
#include "torchx/device.h"

namespace ullage::params {

class ManagedParameter;

struct GatherStatistics {
  std::int64_t gathers = 0;         // units brought into the ring
  std::int64_t gathered_bytes = 0;  // read for that, own slices included
  std::int64_t ahead = 0;           // of the gathers, those made before an operator asked
  std::int64_t overflows = 0;       // gathers that found the ring full of pinned units
};

// Thread-safe where noted; the rest is called between steps by the thread that owns the engine.
class ParameterStore {
 public:
  // All references must outlive the store. The window's weights regions are the store's to use.
  ParameterStore(const plan::Plan& plan, const plan::WindowPlan& window_plan, comm::Comm& comm,
                 comm::TieredWindow& window, memory::Memory& memory);
  // Parameters of resident units keep their values in storages of their own; the others stay
  // absent and say why.
  ~ParameterStore();

  // Binds the tensors of `parameter` (several when the module has aliases of one storage). Their
  // old storages are released. The values come from what the caller writes to Home before the
  // first EndUpdate.
  void Bind(int parameter, std::vector<at::Tensor> tensors);

  // What this rank holds of the weights of `unit` at their home, Plan::HeldNumel elements. Null in
  // a dry run.
  std::byte* Home(int unit) const;
  // The same weights where operators read them, when `unit` is resident there and at home
  // elsewhere; else null. Work of `queue` comes after the copies that bring them.
  std::byte* Copy(int unit, const torchx::Queue& queue) const;

  // Called after a user's write reached weights that have fp32 values beside them: those in
  // [offset, offset + numel) of what this rank holds of `unit` may have changed. `before` holds the
  // old ones, on the same tier.
  using WriteListener =
      std::function<void(int unit, std::int64_t offset, std::int64_t numel, const void* before)>;
  void OnWrite(WriteListener listener) { on_write_ = std::move(listener); }
  // Called before a user's write may change weights of `unit`.
  void OnBeforeWrite(std::function<void(int unit)> listener) {
    on_before_write_ = std::move(listener);
  }

  // Returns when this rank has read all that it will read of its peers' present weights: before the
  // exchange that all ranks pass in front of an update.
  void EndReading();
  // Opens the time in which weights at Home may be changed. All ranks have passed a common exchange
  // after EndReading, so nobody reads old versions any more. Gathered copies of trainable units are
  // dropped, and with `frozen_too` those of all units.
  void BeginUpdate(bool frozen_too = false);
  // Weights of `unit` will change at Home until Publish, on another thread, also after EndUpdate:
  // operators that use them wait.
  void AnnounceUpdate(int unit);
  // The new weights of `unit` are at Home: operators and peers may have them from now on. Any
  // thread.
  void Publish(int unit) { Publish(unit, /*copy_is_new=*/false); }
  // The same, and they are at Copy already.
  void PublishBoth(int unit) { Publish(unit, /*copy_is_new=*/true); }
  // Announced updates will not come: those who wait get a StateError.
  void FailUpdates(const std::string& reason);
  // Returns when no announced update of `unit` is under way.
  void AwaitUpdate(int unit) const {
    std::unique_lock lock(mutex_);
    AwaitUpdate(unit, lock);
  }
  // After Publish of every unit, but those that were announced: resident units fetch the slices of
  // their peers, and graphs that saved old weights become invalid.
  void EndUpdate();

  // Finds parameters that were rebound (`p.data = x`, `.to(...)`) since the last call. A tensor
  // of the same shape is adopted: its values are written to the weights. Another shape, a
  // non-floating dtype or a changed requires_grad throws StateError naming the parameter.
  void CheckBindings();

  // Makes all bytes of `parameters` present until Release with the same list and `write`, which
  // then writes back. Thread-safe.
  void Acquire(const std::vector<int>& parameters, bool write);
  void Release(const std::vector<int>& parameters, bool write);

  GatherStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  friend class ManagedParameter;

  struct UnitState {
    std::uint64_t version = 0;  // of the slices that make up the current weights
    int pins = 0;
    std::byte* present = nullptr;  // where all weights lie on the device
    bool is_present = false;
    bool is_ahead = false;  // gathered, but not used yet
    bool is_stale = false;  // resident, and peers' slices of this version are still to be fetched
    bool is_changing = false;  // at home, by an update that was announced
    memory::Buffer resident;   // all weights, unless they lie in the window
    memory::Buffer home;       // what this rank holds, unless it lies in `resident` or the window
    memory::Buffer overflow;   // their memory when the ring had no room
    torchx::Event ready;       // after the copies that made them present
    torchx::Event last_use;    // after the last operator that used them
    std::vector<ManagedParameter*> members;
  };

  void AllocateWeights(int unit);
  void AwaitUpdate(int unit, std::unique_lock<std::recursive_mutex>& lock) const;
  void AcquireUnit(int unit);
  void ReleaseUnit(int unit);
  // Gathers unless `ahead` and there is no room; returns whether it did.
  bool Gather(int unit, bool ahead);
  void GatherAhead();
  void CopySlices(int unit, std::byte* destination);
  // Peers have published what this rank is going to read of `unit`. Without the mutex, because the
  // peers may be waiting for a Publish of this rank's, which takes it.
  void AwaitPeers(int unit);
  bool PeersAreReady(int unit) const;
  // Every peer has read this rank's slice of a resident unit, which may change then.
  void AwaitReaders(int unit);
  void FetchSlices(int unit);
  bool HasSlicesElsewhere(int index) const {
    return plan_.world_size > 1 && unit_plan(index).resident &&
           unit_plan(index).state == plan::StateShare::kSlice;
  }
  plan::SharedPlace PlaceOf(int index) const {
    return window_plan_.weights[static_cast<std::size_t>(index)];
  }
  void MarkPresent(int unit, std::byte* data);
  void MarkAbsent(int unit);
  std::byte* ResidentWeights(int unit) const;
  std::byte* OwnPart(int unit, std::byte* weights) const;
  void Publish(int unit, bool copy_is_new);
  // In write_back.cc.
  memory::Buffer CopyOfHome(const ManagedParameter& parameter);
  void WriteBack(ManagedParameter& parameter, memory::Buffer before);
  void Adopt(ManagedParameter& parameter, at::Tensor tensor);
  const plan::UnitPlan& unit_plan(int index) const {
    return plan_.units[static_cast<std::size_t>(index)];
  }
  const layout::Unit& unit(int index) const { return unit_plan(index).unit; }
  UnitState& state(int index) { return units_[static_cast<std::size_t>(index)]; }
  const UnitState& state(int index) const { return units_[static_cast<std::size_t>(index)]; }
  std::int64_t SliceBytes(int index) const {
    return unit(index).slice_numel * ElementBytes(unit(index).dtype);
  }
  std::int64_t GatheredBytes(int index) const { return SliceBytes(index) * plan_.world_size; }
  torchx::Queue Operators() const { return torchx::Queue::OfOperators(memory_.device()); }

  const plan::Plan& plan_;
  const plan::WindowPlan& window_plan_;
  comm::Comm& comm_;
  comm::TieredWindow& window_;
  memory::Memory& memory_;
  const torchx::Queue copies_;
  WriteListener on_write_;
  std::function<void(int unit)> on_before_write_;

  std::vector<memory::Claim> claims_;  // of the weights in the window
  memory::Buffer ring_memory_;
  std::vector<std::unique_ptr<ManagedParameter>>
      parameters_;  // by index; null when without elements

  mutable std::recursive_mutex mutex_;  // guards what follows
  mutable std::condition_variable_any updated_;
  std::string failure_;  // of announced updates
  layout::Ring ring_;
  std::vector<UnitState> units_;
  UseSequence uses_;
  std::int64_t ahead_bytes_ = 0;  // gathered and not used yet
  GatherStatistics statistics_;
  bool warned_of_overflow_ = false;
};

}  // namespace ullage::params
