#include "torchx/storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>

#include "torchx/interception.h"
#include "torchx/version.h"

namespace ullage::torchx {
namespace {

// StorageImpl keeps "throw on access" private, and offers only a one-way switch. Explicit
// template instantiation may name private members, which gives a pointer to it.
template <typename Tag, typename Tag::Pointer member>
struct PrivateMember {
  friend typename Tag::Pointer Get(Tag) { return member; }
};
struct ThrowFlag {
  using Pointer = bool c10::StorageImpl::*;
  friend Pointer Get(ThrowFlag);
};
template struct PrivateMember<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

c10::Storage MakeAbsentStorage(std::int64_t bytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device),
      /*allocator=*/nullptr, /*resizable=*/false));
}

void SetPresent(c10::StorageImpl& storage, void* data) {
  storage.*Get(ThrowFlag{}) = false;
  storage.set_data_ptr_noswap(c10::DataPtr(data, storage.device()));
}

void SetAbsent(c10::StorageImpl& storage, const std::string& message) {
  // First the flag: what setting the pointer does derives from it whether writers are checked too.
  storage.*Get(ThrowFlag{}) = true;
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.get_extra_meta().custom_data_ptr_error_msg_ = message;
}

void Bind(const at::Tensor& parameter, const c10::Storage& storage, c10::ScalarType dtype,
          c10::IntArrayRef sizes, bool managed) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard not_intercepted(kInterceptionKey);
  // A parameter made under inference mode has no autograd keys; the new impl must not have them.
  c10::InferenceMode inference(parameter.is_inference());
  c10::DispatchKeySet keys(storage.device().is_meta()   ? c10::DispatchKey::Meta
                           : storage.device().is_cuda() ? c10::DispatchKey::CUDA
                                                        : c10::DispatchKey::CPU);
  if (managed) keys = keys.add(kInterceptionKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), keys,
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(sizes);
  c10::TensorImpl* target = parameter.unsafeGetTensorImpl();
  if (target->has_compatible_shallow_copy_type(impl->key_set())) {
    at::Tensor(parameter).set_data(at::Tensor(std::move(impl)));
    return;
  }
  // set_data refuses to cross between Meta and a device with memory. What it would do beyond the
  // copy is to forget a gradient accumulator made for the old device.
  if (auto* autograd = torch::autograd::impl::get_autograd_meta(parameter)) {
    std::lock_guard lock(autograd->mutex_);
    autograd->grad_accumulator_.reset();
  }
  target->shallow_copy_from(impl);
}

void BumpVersion(const at::Tensor& parameter) {
  if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
}

at::Tensor View(void* data, c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (device.is_meta()) {  // not by at::empty, which counts as memory (torchx/storage_watch.h)
    const auto bytes =
        c10::multiply_integers(sizes) * static_cast<std::int64_t>(elementSize(dtype));
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        MakeAbsentStorage(bytes, device), c10::DispatchKeySet(c10::DispatchKey::Meta),
        options.dtype());
    view.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return view;
  }
  return at::from_blob(data, sizes, options);
}

}  // namespace ullage::torchx
