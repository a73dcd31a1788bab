#include "params/managed_parameter.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
      storage_(torchx::MakeAbsentStorage(
          spec.numel * ElementBytes(spec.dtype),
          store.place_ == memory::Place::kHost ? c10::kCPU : c10::kMeta)) {
  SetAbsent();
}

ManagedParameter::~ManagedParameter() {
  torchx::Unregister(storage_);
}

void ManagedParameter::Release(bool written) {
  if (written) {
    // The pin is let go even when the write cannot be completed.
    try {
      store_.WriteBack(*this);
    } catch (...) {
      store_.ReleaseUnit(unit_);
      throw;
    }
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
  const void* present = storage_.unsafeGetStorageImpl()->data();
  c10::Storage own(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(storage_.nbytes()),
      c10::GetCPUAllocator(), /*resizable=*/true));
  std::memcpy(own.mutable_data(), present, storage_.nbytes());
  for (const at::Tensor& tensor : tensors_) {
    torchx::Bind(tensor, own, torchx::ToTorch(spec_.dtype), spec_.shape, /*managed=*/false);
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
