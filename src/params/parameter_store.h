// Managed parameters: the model's weights, present where and while operators need them.
//
// The store binds the model's parameter tensors to storages of its own. Weights of whole units
// lie in this rank's window for good. Weights of sliced units are gathered into a ring when an
// operator asks (torchx/interception.h), each rank reading its peers' slices by itself, and give
// way to others later. Weights change only between BeginUpdate and EndUpdate, and by the user's
// own writes; each slice has a version that readers wait for.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "layout/ring.h"
#include "memory/buffer.h"
#include "plan/window_plan.h"

namespace ullage::params {

class ManagedParameter;

struct GatherStatistics {
  std::int64_t gathers = 0;         // units brought into the ring
  std::int64_t gathered_bytes = 0;  // read for that, own slices included
  std::int64_t overflows = 0;       // gathers that found the ring full of pinned units
};

// Thread-safe where noted; the rest is called between steps by the thread that owns the engine.
class ParameterStore {
 public:
  // All references must outlive the store. The window's weights regions are the store's to use.
  ParameterStore(const plan::Plan& plan, const plan::WindowPlan& window_plan, comm::Comm& comm,
                 comm::Window& window, memory::Ledger& ledger, memory::Place place);
  // Parameters of whole units keep their values in storages of their own; those of sliced units
  // stay absent and say why.
  ~ParameterStore();

  // Binds the tensors of `parameter` (several when the module has aliases of one storage). Their
  // old storages are released. The values come from what the caller writes to OwnWeights and
  // WholeWeights before the first EndUpdate.
  void Bind(int parameter, std::vector<at::Tensor> tensors);

  // This rank's slice of the weights of `unit`, slice_numel elements. Null in a dry run.
  std::byte* OwnWeights(int unit) const;
  // All weights of a whole unit, padded_numel elements.
  std::byte* WholeWeights(int unit) const;

  // Called with the unit and parameter after a user's write reached the weights.
  using WriteListener = std::function<void(int unit, int parameter)>;
  void OnWrite(WriteListener listener) { on_write_ = std::move(listener); }

  // Opens the time in which OwnWeights may be changed. All ranks have passed a common exchange,
  // so nobody reads old versions any more. Gathered copies of trainable units are dropped.
  void BeginUpdate();
  // The new weights of `unit` may be read by peers from now on.
  void Publish(int unit);
  // After Publish of every unit: whole units fetch the slices of their peers, and graphs that
  // saved old weights become invalid. Returns when every rank has fetched: the user may write to
  // whole weights from then on, and a peer must not take half of that for the update.
  void EndUpdate();

  // Finds parameters that were rebound (`p.data = x`, `.to(...)`) since the last call. A tensor
  // of the same shape is adopted: its values are written to the weights. Another shape, a
  // non-floating dtype or a changed requires_grad throws StateError naming the parameter.
  void CheckBindings();

  // Makes all bytes of `parameters` present until Release, which writes back when `written`.
  // Thread-safe. The same list must be given to both.
  void Acquire(const std::vector<int>& parameters);
  void Release(const std::vector<int>& parameters, bool written);

  GatherStatistics statistics() const;

 private:
  friend class ManagedParameter;

  struct UnitState {
    std::uint64_t version = 0;  // of the slices that make up the current weights
    int pins = 0;
    std::byte* present = nullptr;  // where the gathered unit lies
    bool is_present = false;
    memory::Buffer overflow;  // its memory when the ring had no room
    std::vector<ManagedParameter*> members;
  };

  void AcquireUnit(int unit);
  void ReleaseUnit(int unit);
  void Gather(int unit);
  void MarkPresent(int unit, std::byte* data);
  void MarkAbsent(int unit);
  void WriteBack(ManagedParameter& parameter);
  void Adopt(ManagedParameter& parameter, at::Tensor tensor);
  const layout::Unit& unit(int index) const {
    return plan_.units[static_cast<std::size_t>(index)].unit;
  }
  UnitState& state(int index) { return units_[static_cast<std::size_t>(index)]; }
  std::int64_t SliceBytes(int index) const {
    return unit(index).slice_numel * ElementBytes(unit(index).dtype);
  }

  const plan::Plan& plan_;
  const plan::WindowPlan& window_plan_;
  comm::Comm& comm_;
  comm::Window& window_;
  memory::Ledger& ledger_;
  const memory::Place place_;
  WriteListener on_write_;

  std::vector<memory::Claim> claims_;  // of the weights in the window
  memory::Buffer ring_memory_;
  std::vector<std::unique_ptr<ManagedParameter>>
      parameters_;  // by index; null when without elements

  mutable std::recursive_mutex mutex_;  // guards what follows
  layout::Ring ring_;
  std::vector<UnitState> units_;
  GatherStatistics statistics_;
  std::uint64_t updates_ = 0;  // EndUpdate calls in which peers' slices were fetched
  bool warned_of_overflow_ = false;
};

}  // namespace ullage::params
