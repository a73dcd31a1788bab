#include "params/managed_parameter.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "torchx/dtype.h"
#include "torchx/storage.h"

namespace ullage::params {

ManagedParameter::ManagedParameter(ParameterStore& store, int index, int unit,
                                   const layout::Member& member, const layout::ParameterSpec& spec)
    : ManagedStorage(spec.name),
      store_(store),
      index_(index),
      unit_(unit),
      member_(member),
      spec_(spec),
      absent_message_(fmt::format(
          "ullage: the bytes of parameter '{}' are not here: sliced parameters are present only "
          "while an operator runs on them\nhint: read it through engine.Gather({{\"{}\"}}) or "
          "clone "
          "it; if the engine is gone, make the model again or export it first",
          spec.name, spec.name)),
      storage_(torchx::MakeAbsentStorage(spec.numel * ElementBytes(spec.dtype),
                                         store.memory_.device())) {
  SetAbsent();
}

ManagedParameter::~ManagedParameter() {
  torchx::Unregister(storage_);
}

bool ManagedParameter::NeedsCopyToWrite() const {
  const plan::UnitPlan& plan = store_.unit_plan(unit_);
  return spec_.trainable && MasterExtensionBytes(spec_.dtype) > 0 && plan.resident &&
         plan.home == plan::Tier::kDevice;
}

void ManagedParameter::Acquire(bool to_write) {
  if (to_write && store_.on_before_write_) store_.on_before_write_(unit_);
  store_.AcquireUnit(unit_);
  if (!to_write) return;
  try {
    store_.AwaitReaders(unit_);
    if (!NeedsCopyToWrite()) return;
    before_.push_back(store_.CopyOfHome(*this));
  } catch (...) {
    store_.ReleaseUnit(unit_);
    throw;
  }
}

void ManagedParameter::Release(torchx::Outcome outcome) {
  memory::Buffer before;
  if (outcome != torchx::Outcome::kRead && NeedsCopyToWrite()) {
    before = std::move(before_.back());
    before_.pop_back();
  }
  // The pin is let go even when the write cannot be completed.
  try {
    if (outcome == torchx::Outcome::kWritten) store_.WriteBack(*this, std::move(before));
  } catch (...) {
    store_.ReleaseUnit(unit_);
    throw;
  }
  store_.ReleaseUnit(unit_);
}

void ManagedParameter::Bind(std::vector<at::Tensor> tensors) {
  tensors_ = std::move(tensors);
  for (const at::Tensor& tensor : tensors_) {
    torchx::Bind(tensor, storage_, torchx::ToTorch(spec_.dtype), spec_.shape, /*managed=*/true);
  }
  torchx::Register(storage_, this);
}

void ManagedParameter::Unbind() {
  const at::Tensor own =
      at::empty(spec_.shape,
                at::TensorOptions().dtype(torchx::ToTorch(spec_.dtype)).device(storage_.device()));
  const torchx::Queue operators = torchx::Queue::OfOperators(storage_.device());
  operators.Copy(own.mutable_data_ptr(), storage_.unsafeGetStorageImpl()->data(),
                 static_cast<std::int64_t>(storage_.nbytes()));
  operators.Finish();
  for (const at::Tensor& tensor : tensors_) {
    torchx::Bind(tensor, own.storage(), torchx::ToTorch(spec_.dtype), spec_.shape,
                 /*managed=*/false);
  }
  tensors_.clear();
}

const at::Tensor* ManagedParameter::Rebound() const {
  const auto is_as_bound = [this](const at::Tensor& tensor) {
    // The last three: `p.data = p.data.t()` and the like stay on the storage.
    return tensor.has_storage() &&
           tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
               storage_.unsafeGetStorageImpl() &&
           tensor.sizes() == c10::IntArrayRef(spec_.shape) && tensor.is_contiguous() &&
           tensor.storage_offset() == 0;
  };
  const auto rebound = std::find_if_not(tensors_.begin(), tensors_.end(), is_as_bound);
  return rebound == tensors_.end() ? nullptr : &*rebound;
}

bool ManagedParameter::RequiresGradChanged() const {
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.requires_grad() != spec_.trainable) return true;
  }
  return false;
}

void ManagedParameter::SetPresent(std::byte* unit_data) {
  std::byte* data =
      unit_data == nullptr ? nullptr : unit_data + member_.offset * ElementBytes(spec_.dtype);
  torchx::SetPresent(*storage_.unsafeGetStorageImpl(), data);
}

void ManagedParameter::SetAbsent() {
  torchx::SetAbsent(*storage_.unsafeGetStorageImpl(), absent_message_);
}

void ManagedParameter::BumpVersion() const {
  for (const at::Tensor& tensor : tensors_) torchx::BumpVersion(tensor);
}

}  // namespace ullage::params
