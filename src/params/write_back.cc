// Writes to parameters that are not the optimizer's: by operators, and by rebinding.
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "params/managed_parameter.h"
#include "params/parameter_store.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

// Fingerprint of the exchange that precedes a write to a sliced unit.
constexpr std::uint32_t kWriteItem = 0x57000000;

// A part of a parameter that this rank holds; in elements.
struct Held {
  std::int64_t offset;       // in what the rank holds of the unit
  std::int64_t unit_offset;  // in the unit
  std::int64_t numel;
};

Held HeldPart(const plan::Plan& plan, int unit, const layout::Member& member, int rank) {
  const plan::UnitPlan& unit_plan = plan.units[static_cast<std::size_t>(unit)];
  const std::int64_t held_numel = plan.HeldNumel(unit);
  const bool is_slice = held_numel == unit_plan.unit.slice_numel;
  const std::int64_t first = is_slice ? rank * held_numel : 0;
  const std::int64_t begin = std::max(first, member.offset);
  const std::int64_t end = std::min(first + held_numel, member.offset + member.numel);
  if (begin >= end) return {0, 0, 0};
  return {begin - first, begin, end - begin};
}

}  // namespace

// The weights of `parameter` that this rank holds, as they are at home.
memory::Buffer ParameterStore::CopyOfHome(const ManagedParameter& parameter) {
  const int index = parameter.unit();
  const Held held = HeldPart(plan_, index, parameter.member(), comm_.rank());
  const std::int64_t element_bytes = ElementBytes(unit(index).dtype);
  memory::Buffer copy = memory_.Allocate(memory::Tag::kBuckets, {held.numel * element_bytes, 0},
                                         unit_plan(index).home);
  if (copy.data() != nullptr) {
    const torchx::Queue operators = Operators();
    operators.Copy(copy.data(), Home(index) + held.offset * element_bytes, copy.size());
    if (unit_plan(index).home == plan::Tier::kHost) operators.Finish();
  }
  return copy;
}

void ParameterStore::WriteBack(ManagedParameter& parameter, memory::Buffer before) {
  const int index = parameter.unit();
  const plan::UnitPlan& plan = unit_plan(index);
  const Held held = HeldPart(plan_, index, parameter.member(), comm_.rank());
  if (plan.unit.sliced) {
    // Note [Writes to sliced parameters]: every rank has applied the same operator to its own
    // gathered copy, made of old slices. Only when all have done so may the slices change; peers
    // that gather later wait for the new version. A rank that does not write is found by the
    // fingerprint or the timeout.
    copies_.Finish();
    comm_.Barrier(kWriteItem | static_cast<std::uint32_t>(index));
  }
  std::lock_guard lock(mutex_);
  UnitState& unit_state = state(index);
  if (held.numel > 0 && unit_state.present != nullptr) {
    const std::int64_t element_bytes = ElementBytes(plan.unit.dtype);
    std::byte* home = Home(index) + held.offset * element_bytes;
    const std::byte* written = unit_state.present + held.unit_offset * element_bytes;
    if (home != written) {
      // Where operators write to a copy, the old weights are still at home.
      if (plan.unit.trainable && MasterExtensionBytes(plan.unit.dtype) > 0) {
        before = CopyOfHome(parameter);
      }
      const torchx::Queue operators = Operators();
      operators.Copy(home, written, held.numel * element_bytes);
      if (plan.home == plan::Tier::kHost) operators.Finish();
    }
    if (on_write_ && !before.empty()) on_write_(index, held.offset, held.numel, before.data());
  }
  if (plan.unit.sliced) {
    window_.SignalAfter(Operators(), window_plan_.version(index), ++unit_state.version);
  }
}

// By value: Bind replaces the list that `tensor` comes from.
void ParameterStore::Adopt(ManagedParameter& parameter, at::Tensor tensor) {
  const layout::ParameterSpec& spec = parameter.spec();
  const at::Tensor values = tensor.detach();
  if (values.sizes() != c10::IntArrayRef(spec.shape) || !values.is_floating_point() ||
      values.device().is_meta() != memory_.is_dry()) {
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

}  // namespace ullage::params
