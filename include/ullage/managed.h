// Tensors whose bytes an engine hands out while operators need them. Operators come by their bytes
// by themselves; this is for code that reads or writes memory without one: raw pointers, kernels of
// other compilers, copies by storage.
#pragma once

#include <memory>

#include "ullage/export.h"

namespace at {
class Tensor;
}

namespace ullage {

// Whether the bytes of `tensor`, or of what it is a view of, come and go.
ULLAGE_API bool IsManaged(const at::Tensor& tensor);
// Whether operators on `tensor` pass by an engine; true of views and of tensors that were managed.
ULLAGE_API bool IsIntercepted(const at::Tensor& tensor);

// While this lives, the bytes of a managed tensor are present. With `write`, what was written is
// kept when it ends; every rank must then do the same.
class ULLAGE_API Hold {
 public:
  // Throws StateError when the tensor is not managed, CommError when a peer does not answer.
  Hold(const at::Tensor& tensor, bool write);
  Hold(Hold&&) noexcept;
  // Without an End before it, writes are dropped.
  ~Hold();
  // May throw when what was written has to be kept and a peer is gone.
  void End();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ullage
