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
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

// Fingerprint of the exchange that precedes a write to a sliced unit.
constexpr std::uint32_t kWriteItem = 0x57000000;

}  // namespace

ParameterStore::ParameterStore(const plan::Plan& plan, const plan::WindowPlan& window_plan,
                               comm::Comm& comm, comm::Window& window, memory::Ledger& ledger,
                               memory::Place place)
    : plan_(plan),
      window_plan_(window_plan),
      comm_(comm),
      window_(window),
      ledger_(ledger),
      place_(place),
      ring_memory_(ledger, place, memory::Tag::kSlots, {plan.ring_bytes, 0}),
      ring_(plan.ring_bytes),
      units_(plan.units.size()) {
  parameters_.resize(plan.parameters.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const int index = static_cast<int>(u);
    claims_.emplace_back(ledger, memory::Tag::kWeights,
                         plan::WeightBytes(plan.units[u], comm.rank(), plan.world_size));
    for (const layout::Member& member : unit(index).members) {
      const auto p = static_cast<std::size_t>(member.parameter);
      parameters_[p] = std::make_unique<ManagedParameter>(*this, member.parameter, index, member,
                                                          plan.parameters[p]);
      state(index).members.push_back(parameters_[p].get());
    }
    if (!unit(index).sliced) MarkPresent(index, WholeWeights(index));
  }
}

ParameterStore::~ParameterStore() {
  if (place_ == memory::Place::kNowhere) return;
  for (const auto& parameter : parameters_) {
    if (parameter != nullptr && !unit(parameter->unit()).sliced) parameter->Unbind();
  }
  for (UnitState& state : units_) {
    if (state.is_present) {
      for (ManagedParameter* member : state.members) member->SetAbsent();
    }
  }
}

void ParameterStore::Bind(int parameter, std::vector<at::Tensor> tensors) {
  const auto p = static_cast<std::size_t>(parameter);
  if (parameters_[p] != nullptr) return parameters_[p]->Bind(std::move(tensors));
  // Without elements there is nothing to manage, but the dtype must fit the others'.
  const layout::ParameterSpec& spec = plan_.parameters[p];
  const c10::Device device = place_ == memory::Place::kHost ? c10::kCPU : c10::kMeta;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor empty = at::empty(
        spec.shape, at::TensorOptions().dtype(torchx::ToTorch(spec.dtype)).device(device));
    torchx::Bind(tensor, empty.storage(), torchx::ToTorch(spec.dtype), spec.shape, false);
  }
}

std::byte* ParameterStore::WholeWeights(int index) const {
  if (window_.data() == nullptr) return nullptr;
  return window_.data() + window_plan_.weights[static_cast<std::size_t>(index)];
}

std::byte* ParameterStore::OwnWeights(int index) const {
  std::byte* weights = WholeWeights(index);
  if (weights == nullptr || unit(index).sliced) return weights;
  return weights + comm_.rank() * SliceBytes(index);
}

void ParameterStore::BeginUpdate() {
  std::lock_guard lock(mutex_);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const int index = static_cast<int>(u);
    if (!unit(index).sliced || !unit(index).trainable || !units_[u].is_present) continue;
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

void ParameterStore::Publish(int index) {
  std::lock_guard lock(mutex_);
  UnitState& unit_state = state(index);
  window_.Signal(window_plan_.version(index), ++unit_state.version);
}

void ParameterStore::EndUpdate() {
  std::lock_guard lock(mutex_);
  bool fetched = false;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const int index = static_cast<int>(u);
    const bool slices_elsewhere =
        !unit(index).sliced && plan_.units[u].state == plan::StateShare::kSlice;
    if (slices_elsewhere) {
      fetched = true;
      for (int step = 1; step < plan_.world_size; ++step) {
        const int peer = (comm_.rank() + step) % plan_.world_size;
        const std::int64_t offset = peer * SliceBytes(index);
        std::span<std::byte> destination;
        if (place_ == memory::Place::kHost) {
          destination = {WholeWeights(index) + offset, static_cast<std::size_t>(SliceBytes(index))};
        }
        window_.Read(peer, window_plan_.version(index), units_[u].version,
                     window_plan_.weights[u] + offset, destination, "new weights");
      }
    }
    if (!unit(index).trainable) continue;
    for (const ManagedParameter* member : units_[u].members) member->BumpVersion();
  }
  if (!fetched) return;
  window_.Signal(window_plan_.weights_read(), ++updates_);
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    window_.Wait(rank, window_plan_.weights_read(), updates_, "the end of the optimizer step");
  }
}

void ParameterStore::AcquireUnit(int index) {
  if (!unit(index).sliced) return;
  std::lock_guard lock(mutex_);
  UnitState& unit_state = state(index);
  ++unit_state.pins;
  if (unit_state.is_present) return;
  try {
    Gather(index);
  } catch (...) {
    --unit_state.pins;
    throw;
  }
}

void ParameterStore::ReleaseUnit(int index) {
  if (!unit(index).sliced) return;
  std::lock_guard lock(mutex_);
  UnitState& unit_state = state(index);
  if (--unit_state.pins == 0 && !unit_state.overflow.empty()) {
    MarkAbsent(index);
    unit_state.overflow = memory::Buffer();
  }
}

void ParameterStore::Gather(int index) {
  UnitState& unit_state = state(index);
  const std::int64_t slice_bytes = SliceBytes(index);
  const std::int64_t bytes = slice_bytes * plan_.world_size;
  const auto placement =
      ring_.Place(index, bytes, [this](int other) { return state(other).pins > 0; });
  std::byte* destination = nullptr;
  if (placement.has_value()) {
    for (const int evicted : placement->evicted) MarkAbsent(evicted);
    if (ring_memory_.data() != nullptr) destination = ring_memory_.data() + placement->offset;
  } else {
    ++statistics_.overflows;
    if (!std::exchange(warned_of_overflow_, true)) {
      LogWarn("params", fmt::format("one operator needs more weights than the ring of {} holds: {} "
                                    "more are allocated for '{}' while it runs",
                                    FormatBytes(ring_.capacity()), FormatBytes(bytes),
                                    unit_state.members.front()->name()));
    }
    unit_state.overflow = memory::Buffer(ledger_, place_, memory::Tag::kSlots, {bytes, 0});
    destination = unit_state.overflow.data();
  }
  try {
    for (int step = 0; step < plan_.world_size; ++step) {
      const int owner = (comm_.rank() + step) % plan_.world_size;
      std::span<std::byte> slice;
      if (destination != nullptr) {
        slice = {destination + owner * slice_bytes, static_cast<std::size_t>(slice_bytes)};
      }
      if (owner == comm_.rank()) {
        if (!slice.empty()) std::memcpy(slice.data(), OwnWeights(index), slice.size());
        continue;
      }
      window_.Read(owner, window_plan_.version(index), unit_state.version,
                   window_plan_.weights[static_cast<std::size_t>(index)], slice,
                   unit_state.members.front()->name().c_str());
    }
  } catch (...) {
    ring_.Remove(index);
    unit_state.overflow = memory::Buffer();
    throw;
  }
  ++statistics_.gathers;
  statistics_.gathered_bytes += bytes;
  MarkPresent(index, destination);
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
  for (ManagedParameter* member : unit_state.members) member->SetAbsent();
}

void ParameterStore::WriteBack(ManagedParameter& parameter) {
  const int index = parameter.unit();
  if (unit(index).sliced) {
    // Note [Writes to sliced parameters]: every rank has applied the same operator to its own
    // gathered copy, made of old slices. Only when all have done so may the slices change; peers
    // that gather later wait for the new version. A rank that does not write is found by the
    // fingerprint or the timeout.
    comm_.Barrier(kWriteItem | static_cast<std::uint32_t>(index));
    std::lock_guard lock(mutex_);
    UnitState& unit_state = state(index);
    if (unit_state.present != nullptr) {
      const std::int64_t element_bytes = ElementBytes(unit(index).dtype);
      const std::int64_t slice_begin = comm_.rank() * unit(index).slice_numel;
      for (const layout::Piece& piece : layout::PiecesOfSlice(unit(index), comm_.rank())) {
        if (piece.parameter != parameter.index()) continue;
        std::memcpy(OwnWeights(index) + piece.slice_offset * element_bytes,
                    unit_state.present + (slice_begin + piece.slice_offset) * element_bytes,
                    static_cast<std::size_t>(piece.numel * element_bytes));
      }
    }
    window_.Signal(window_plan_.version(index), ++unit_state.version);
  }
  if (on_write_) on_write_(index, parameter.index());
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

// By value: Bind replaces the list that `tensor` comes from.
void ParameterStore::Adopt(ManagedParameter& parameter, at::Tensor tensor) {
  const layout::ParameterSpec& spec = parameter.spec();
  const at::Tensor values = tensor.detach();
  if (values.sizes() != c10::IntArrayRef(spec.shape) || !values.is_floating_point() ||
      values.device().is_meta() != (place_ == memory::Place::kNowhere)) {
    throw StateError(fmt::format("parameter '{}' was replaced by another tensor that does not fit: "
                                 "shape [{}] {} where [{}] is managed",
                                 parameter.name(), fmt::join(values.sizes(), ", "),
                                 c10::toString(values.scalar_type()), fmt::join(spec.shape, ", ")),
                     "copy_ new values into the parameter, or make a new engine");
  }
  LogWarn("params", fmt::format("parameter '{}' was rebound to another tensor; its values are "
                                "taken over",
                                parameter.name()));
  const at::Tensor held = values.contiguous();
  parameter.Bind(parameter.tensors());
  at::NoGradGuard no_grad;
  tensor.detach().copy_(held);  // intercepted: written back as any write of the user's
}

void ParameterStore::Acquire(const std::vector<int>& parameters) {
  std::size_t acquired = 0;
  const auto unit_of = [this, &parameters](std::size_t i) {
    const auto& parameter = parameters_[static_cast<std::size_t>(parameters[i])];
    return parameter == nullptr ? -1 : parameter->unit();
  };
  try {
    for (; acquired < parameters.size(); ++acquired) {
      if (unit_of(acquired) >= 0) AcquireUnit(unit_of(acquired));
    }
  } catch (...) {
    while (acquired > 0) {
      if (unit_of(--acquired) >= 0) ReleaseUnit(unit_of(acquired));
    }
    throw;
  }
}

void ParameterStore::Release(const std::vector<int>& parameters, bool written) {
  for (const int index : parameters) {
    if (const auto& parameter = parameters_[static_cast<std::size_t>(index)]) {
      parameter->Release(written);
    }
  }
}

GatherStatistics ParameterStore::statistics() const {
  std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace ullage::params
