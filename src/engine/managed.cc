#include "ullage/managed.h"

#include <ATen/core/Tensor.h>

#include <utility>

#include "torchx/interception.h"
#include "ullage/error.h"

namespace ullage {

using torchx::Outcome;

bool IsManaged(const at::Tensor& tensor) {
  return torchx::FindManaged(tensor) != nullptr;
}

bool IsIntercepted(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(torchx::kInterceptionKey);
}

struct Hold::State {
  torchx::ManagedStorage* managed;
  bool write;
};

Hold::Hold(const at::Tensor& tensor, bool write) {
  torchx::ManagedStorage* managed = torchx::FindManaged(tensor);
  if (managed == nullptr) {
    throw StateError("the tensor is not managed by an engine", "ask IsManaged first");
  }
  managed->Acquire(write);
  state_ = std::make_unique<State>(State{managed, write});
}

Hold::Hold(Hold&&) noexcept = default;

Hold::~Hold() {
  if (state_ == nullptr) return;
  try {
    state_->managed->Release(state_->write ? Outcome::kAbandoned : Outcome::kRead);
  } catch (...) {  // nothing is kept
  }
}

void Hold::End() {
  const std::unique_ptr<State> state = std::move(state_);
  if (state != nullptr) state->managed->Release(state->write ? Outcome::kWritten : Outcome::kRead);
}

}  // namespace ullage
