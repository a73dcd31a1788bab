#include "params/parameter_store.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "kernels/cast.h"
#include "params/managed_parameter.h"
#include "torchx/dtype.h"
#include "torchx/profile.h"
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::params {
ParameterStore::ParameterStore(const plan::Plan& plan, const plan::WindowPlan& window_plan,
                               comm::Comm& comm, comm::TieredWindow& window, memory::Memory& memory)
    : plan_(plan),
      window_plan_(window_plan),
      comm_(comm),
      window_(window),
      memory_(memory),
      copies_(torchx::Queue::Beside(memory.device())),
      ring_memory_(memory.Allocate(memory::Tag::kSlots, {plan.ring_bytes, 0})),
      ring_(plan.ring_bytes),
      units_(plan.units.size()) {
  parameters_.resize(plan.parameters.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const int index = static_cast<int>(u);
    AllocateWeights(index);
    for (const layout::Member& member : unit(index).members) {
      const auto p = static_cast<std::size_t>(member.parameter);
      parameters_[p] = std::make_unique<ManagedParameter>(*this, member.parameter, index, member,
                                                          plan.parameters[p]);
      state(index).members.push_back(parameters_[p].get());
    }
    if (unit_plan(index).resident) MarkPresent(index, ResidentWeights(index));
  }
}

void ParameterStore::AllocateWeights(int index) {
  const plan::UnitPlan& plan = unit_plan(index);
  UnitState& unit_state = state(index);
  const bool in_window = PlaceOf(index).exists();
  const plan::BufferBytes home = plan::HomeBytes(plan, comm_.rank(), plan_.world_size);
  const plan::BufferBytes resident = plan::ResidentBytes(plan, plan_.world_size);
  if (in_window) {
    claims_.push_back(memory_.Note(memory::Tag::kWeights, plan.resident ? resident : home,
                                   plan.resident ? plan::Tier::kDevice : plan.home));
  } else if (plan.resident) {
    unit_state.resident = memory_.Allocate(memory::Tag::kWeights, resident);
  }
  const bool home_elsewhere = plan.resident ? plan.home != plan::Tier::kDevice : !in_window;
  if (home_elsewhere) {
    unit_state.home = memory_.Allocate(memory::Tag::kWeights, home, plan.home);
  }
}

ParameterStore::~ParameterStore() {
  if (memory_.is_dry()) return;
  copies_.Finish();
  Operators().Finish();
  std::string lost;  // the first parameter that finds no memory for its values, and why
  for (const auto& parameter : parameters_) {
    if (parameter == nullptr || !unit_plan(parameter->unit()).resident) continue;
    try {
      parameter->Unbind();
    } catch (const std::exception& error) {
      // The device is full, perhaps because that is why this ends.
      parameter->SetAbsent();
      const std::string why = error.what();
      if (lost.empty()) {
        lost = fmt::format("'{}' and perhaps others do not keep their values after the engine: {}",
                           parameter->name(), why.substr(0, why.find('.')));
      }
    }
  }
  if (!lost.empty()) LogWarn("params", lost);
  for (UnitState& state : units_) {
    if (state.is_present) {
      for (ManagedParameter* member : state.members) member->SetAbsent();
    }
  }
}

void ParameterStore::Bind(int parameter, std::vector<at::Tensor> tensors) {
  const auto p = static_cast<std::size_t>(parameter);
  if (parameters_[p] != nullptr) return parameters_[p]->Bind(std::move(tensors));
  // Without elements there is nothing to manage, but dtype and device must fit the others'.
  const layout::ParameterSpec& spec = plan_.parameters[p];
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor empty =
        at::empty(spec.shape,
                  at::TensorOptions().dtype(torchx::ToTorch(spec.dtype)).device(memory_.device()));
    torchx::Bind(tensor, empty.storage(), torchx::ToTorch(spec.dtype), spec.shape, false);
  }
}

std::byte* ParameterStore::ResidentWeights(int index) const {
  if (!state(index).resident.empty()) return state(index).resident.data();
  return PlaceOf(index).exists() ? window_.At(PlaceOf(index)) : nullptr;
}

std::byte* ParameterStore::Home(int index) const {
  if (!state(index).home.empty()) return state(index).home.data();
  std::byte* weights = ResidentWeights(index);  // or the slice in the window
  return unit_plan(index).resident ? OwnPart(index, weights) : weights;
}

// What this rank holds, of whole weights.
std::byte* ParameterStore::OwnPart(int index, std::byte* weights) const {
  if (weights == nullptr || unit_plan(index).state != plan::StateShare::kSlice) return weights;
  return weights + comm_.rank() * SliceBytes(index);
}

std::byte* ParameterStore::Copy(int index, const torchx::Queue& queue) const {
  if (!unit_plan(index).resident || state(index).home.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  queue.After(state(index).ready);
  return OwnPart(index, ResidentWeights(index));
}

void ParameterStore::EndReading() {
  if (plan_.world_size == 1 || !memory_.is_cuda()) return;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const int index = static_cast<int>(u);
    if (!state(index).is_stale) continue;
    AwaitUpdate(index);
    AwaitPeers(index);
    std::lock_guard lock(mutex_);
    FetchSlices(index);
  }
  copies_.Finish();
}

void ParameterStore::BeginUpdate(bool frozen_too) {
  std::lock_guard lock(mutex_);
  // What is copied from now on finds the work of this step done: places in the ring may be taken
  // without asking for the last use of what lay there, and no copy reads weights as they change.
  copies_.After(Operators().Mark());
  copies_.Finish();
  uses_.Restart();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const int index = static_cast<int>(u);
    if (unit_plan(index).resident || !units_[u].is_present) continue;
    if (!unit(index).trainable && !frozen_too) continue;
    if (units_[u].pins > 0) {
      throw StateError(
          fmt::format("the weights of '{}' are held while the optimizer step is to change them",
                      units_[u].members.front()->name()),
          "end the scope of Gather() before Step()");
    }
    ring_.Remove(index);
    MarkAbsent(index);
  }
}

void ParameterStore::AnnounceUpdate(int index) {
  std::lock_guard lock(mutex_);
  state(index).is_changing = true;
}

void ParameterStore::FailUpdates(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    failure_ = reason;
  }
  updated_.notify_all();
}

void ParameterStore::AwaitUpdate(int index, std::unique_lock<std::recursive_mutex>& lock) const {
  updated_.wait(lock, [&] { return !state(index).is_changing || !failure_.empty(); });
  if (state(index).is_changing) {
    throw StateError(
        fmt::format("the weights of '{}' were not updated, because the update failed: {}",
                    state(index).members.front()->name(), failure_));
  }
}

void ParameterStore::Publish(int index, bool copy_is_new) {
  std::lock_guard lock(mutex_);
  UnitState& unit_state = state(index);
  if (std::exchange(unit_state.is_changing, false)) updated_.notify_all();
  const plan::UnitPlan& plan = unit_plan(index);
  torchx::Queue queue;  // whose work brings the new weights to where peers read them
  if (plan.resident && !unit_state.home.empty()) {
    if (!copy_is_new) queue = copies_;
    if (!copy_is_new && !memory_.is_dry()) {
      queue.Copy(OwnPart(index, ResidentWeights(index)), unit_state.home.data(),
                 unit_state.home.size());
    }
    unit_state.ready = queue.Mark();
  } else if (plan.home == plan::Tier::kDevice) {
    queue = Operators();
  }
  window_.SignalAfter(queue, window_plan_.version(index), ++unit_state.version);
}

void ParameterStore::EndUpdate() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const int index = static_cast<int>(u);
    if (!HasSlicesElsewhere(index)) continue;
    std::unique_lock lock(mutex_);
    state(index).is_stale = true;
    if (state(index).is_changing) continue;  // fetched when an operator asks
    lock.unlock();
    AwaitPeers(index);
    lock.lock();
    FetchSlices(index);
  }
  std::lock_guard lock(mutex_);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!unit(static_cast<int>(u)).trainable) continue;
    for (const ManagedParameter* member : units_[u].members) member->BumpVersion();
  }
}

void ParameterStore::AwaitPeers(int index) {
  std::uint64_t version = 0;
  {
    std::lock_guard lock(mutex_);
    version = state(index).version;
  }
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    if (rank == comm_.rank()) continue;
    window_.Wait(rank, window_plan_.version(index), version,
                 state(index).members.front()->name().c_str());
  }
}

bool ParameterStore::PeersAreReady(int index) const {
  if (!unit(index).sliced) return true;
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    if (rank == comm_.rank() || !comm_.IsLocal(rank)) continue;
    if (window_.Peek(rank, window_plan_.version(index)) < state(index).version) return false;
  }
  return true;
}

void ParameterStore::AwaitReaders(int index) {
  if (!HasSlicesElsewhere(index)) return;
  std::uint64_t version = 0;
  {
    std::lock_guard lock(mutex_);
    version = state(index).version;
  }
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    window_.Wait(rank, window_plan_.fetched(index), version,
                 state(index).members.front()->name().c_str());
  }
}

void ParameterStore::FetchSlices(int index) {
  UnitState& unit_state = state(index);
  if (!std::exchange(unit_state.is_stale, false)) return;
  // What read the weights that are replaced was done when the update began.
  for (int step = 1; step < plan_.world_size; ++step) {
    const int peer = (comm_.rank() + step) % plan_.world_size;
    const std::int64_t offset = peer * SliceBytes(index);
    std::byte* weights = memory_.is_dry() ? nullptr : ResidentWeights(index) + offset;
    window_.Read(peer, window_plan_.version(index), unit_state.version, PlaceOf(index) + offset,
                 weights, SliceBytes(index), copies_, "new weights");
    memory_.ledger().Passed(memory::Traffic::kFromPeers, SliceBytes(index));
  }
  unit_state.ready = copies_.Mark();
  window_.SignalAfter(copies_, window_plan_.fetched(index), unit_state.version);
}

void ParameterStore::AcquireUnit(int index) {
  const bool resident = unit_plan(index).resident;
  // Never moved, and updated in the operators' own queue: there is nothing to wait for.
  const bool is_at_home = unit_plan(index).home == plan::Tier::kDevice && plan_.world_size == 1;
  if (resident && (is_at_home || !memory_.is_cuda())) return;
  std::unique_lock lock(mutex_);
  AwaitUpdate(index, lock);
  UnitState& unit_state = state(index);
  if (resident ? unit_state.is_stale : unit(index).sliced && !unit_state.is_present) {
    lock.unlock();
    AwaitPeers(index);
    lock.lock();
  }
  if (resident) {
    if (unit_state.is_stale) FetchSlices(index);
    return Operators().After(unit_state.ready);
  }
  ++unit_state.pins;
  try {
    if (!unit_state.is_present) Gather(index, /*ahead=*/false);
    if (std::exchange(unit_state.is_ahead, false)) ahead_bytes_ -= GatheredBytes(index);
    uses_.Use(index);
    Operators().After(unit_state.ready);
    GatherAhead();
  } catch (...) {
    --unit_state.pins;
    throw;
  }
}

void ParameterStore::ReleaseUnit(int index) {
  if (unit_plan(index).resident) return;
  std::lock_guard lock(mutex_);
  UnitState& unit_state = state(index);
  if (--unit_state.pins > 0) return;
  unit_state.last_use = Operators().Mark();
  if (unit_state.overflow.empty()) return;
  MarkAbsent(index);
  unit_state.overflow = memory::Buffer();
}

void ParameterStore::GatherAhead() {
  if (plan_.prefetch_bytes == 0) return;
  uses_.ForExpected([this](int index) {
    if (state(index).is_present) return true;
    if (state(index).is_changing || !PeersAreReady(index)) return false;
    if (ahead_bytes_ + GatheredBytes(index) > plan_.prefetch_bytes) return false;
    return Gather(index, /*ahead=*/true);
  });
}

bool ParameterStore::Gather(int index, bool ahead) {
  const torchx::ProfilerRange range("gather", index);
  UnitState& unit_state = state(index);
  const std::int64_t bytes = GatheredBytes(index);
  const auto placement = ring_.Place(index, bytes, [this, ahead](int other) {
    return state(other).pins > 0 || (ahead && state(other).is_ahead);
  });
  std::byte* destination = nullptr;
  if (placement.has_value()) {
    for (const int evicted : placement->evicted) {
      copies_.After(state(evicted).last_use);
      MarkAbsent(evicted);
    }
    if (ring_memory_.data() != nullptr) destination = ring_memory_.data() + placement->offset;
  } else {
    if (ahead) return false;
    ++statistics_.overflows;
    if (!std::exchange(warned_of_overflow_, true)) {
      LogWarn("params", fmt::format("one operator needs more weights than the ring of {} holds: {} "
                                    "more are allocated for '{}' while it runs",
                                    FormatBytes(ring_.capacity()), FormatBytes(bytes),
                                    unit_state.members.front()->name()));
    }
    unit_state.overflow = memory_.Allocate(memory::Tag::kSlots, {bytes, 0});
    destination = unit_state.overflow.data();
    copies_.After(Operators().Mark());  // the memory comes from the operators' queue
  }
  try {
    CopySlices(index, destination);
  } catch (...) {
    ring_.Remove(index);
    unit_state.overflow = memory::Buffer();
    throw;
  }
  unit_state.ready = copies_.Mark();
  ++statistics_.gathers;
  statistics_.gathered_bytes += bytes;
  if (ahead) {
    ++statistics_.ahead;
    ahead_bytes_ += bytes;
    unit_state.is_ahead = true;
  }
  MarkPresent(index, destination);
  return true;
}

void ParameterStore::CopySlices(int index, std::byte* destination) {
  const std::int64_t own = unit(index).sliced ? SliceBytes(index) : GatheredBytes(index);
  const bool goes_up = unit_plan(index).home != plan::Tier::kDevice;
  memory_.ledger().Passed(memory::Traffic::kUp, goes_up ? own : 0);
  memory_.ledger().Passed(memory::Traffic::kFromPeers, GatheredBytes(index) - own);
  if (!unit(index).sliced) {
    if (destination != nullptr) copies_.Copy(destination, Home(index), GatheredBytes(index));
    return;
  }
  const std::int64_t slice_bytes = SliceBytes(index);
  for (int step = 0; step < plan_.world_size; ++step) {
    const int owner = (comm_.rank() + step) % plan_.world_size;
    std::byte* slice = destination == nullptr ? nullptr : destination + owner * slice_bytes;
    if (owner == comm_.rank()) {
      if (slice != nullptr) copies_.Copy(slice, Home(index), slice_bytes);
      continue;
    }
    window_.Read(owner, window_plan_.version(index), state(index).version, PlaceOf(index), slice,
                 slice_bytes, copies_, state(index).members.front()->name().c_str());
  }
}

void ParameterStore::MarkPresent(int index, std::byte* data) {
  UnitState& unit_state = state(index);
  unit_state.present = data;
  unit_state.is_present = true;
  for (ManagedParameter* member : unit_state.members) member->SetPresent(data);
}

void ParameterStore::MarkAbsent(int index) {
  UnitState& unit_state = state(index);
  unit_state.present = nullptr;
  unit_state.is_present = false;
  if (std::exchange(unit_state.is_ahead, false)) ahead_bytes_ -= GatheredBytes(index);
  for (ManagedParameter* member : unit_state.members) member->SetAbsent();
}

void ParameterStore::CheckBindings() {
  for (const auto& parameter : parameters_) {
    if (parameter == nullptr) continue;
    if (const at::Tensor* rebound = parameter->Rebound()) Adopt(*parameter, *rebound);
    if (parameter->RequiresGradChanged()) {
      throw StateError(
          fmt::format("requires_grad of parameter '{}' was changed after the engine was made",
                      parameter->name()),
          "set requires_grad before the engine is made, or make a new engine");
    }
  }
}

void ParameterStore::Acquire(const std::vector<int>& parameters, bool write) {
  std::size_t acquired = 0;
  const auto parameter = [&](std::size_t i) {
    return parameters_[static_cast<std::size_t>(parameters[i])].get();
  };
  try {
    for (; acquired < parameters.size(); ++acquired) {
      if (parameter(acquired) != nullptr) parameter(acquired)->Acquire(write);
    }
  } catch (...) {
    while (acquired > 0) {
      if (parameter(--acquired) != nullptr) {
        parameter(acquired)->Release(write ? torchx::Outcome::kAbandoned : torchx::Outcome::kRead);
      }
    }
    throw;
  }
}

void ParameterStore::Release(const std::vector<int>& parameters, bool write) {
  for (const int index : parameters) {
    if (const auto& parameter = parameters_[static_cast<std::size_t>(index)]) {
      parameter->Release(write ? torchx::Outcome::kWritten : torchx::Outcome::kRead);
    }
  }
}

}  // namespace ullage::params
