// Storages whose bytes come and go under tensors that stay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ullage::torchx {

// A storage of `bytes` bytes that are not there yet. Its size is fixed: the number of bytes is
// kept while they are absent, since views check against it.
c10::Storage MakeAbsentStorage(std::int64_t bytes, c10::Device device);

// Puts the bytes at `data` under the storage. The storage does not own them.
void SetPresent(c10::StorageImpl& storage, void* data);

// Takes the bytes away. Raw access then throws `message` instead of returning null.
void SetAbsent(c10::StorageImpl& storage, const std::string& message);

// Makes `parameter` a tensor of `sizes` (contiguous) and `dtype` over `storage`, keeping the
// identity that modules and autograd know: same TensorImpl, requires_grad, hooks. With `managed`,
// operators on it come through interception.h from now on. What it held before is released.
void Bind(const at::Tensor& parameter, const c10::Storage& storage, c10::ScalarType dtype,
          c10::IntArrayRef sizes, bool managed);

// A later backward through a graph that saved the parameter becomes an error.
void BumpVersion(const at::Tensor& parameter);

// A tensor over memory that somebody else owns. `data` may be null (Meta device only).
at::Tensor View(void* data, c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device);

}  // namespace ullage::torchx
