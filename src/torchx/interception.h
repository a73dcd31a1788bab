// Operators on managed parameters come through here.
//
// A managed parameter's tensor carries a dispatch key that lies above autocast and autograd. One
// boxed fallback for that key looks the storages of an operator's arguments up, makes their bytes
// present, runs the operator with the key excluded, and lets go. Views, and the tensors that
// autograd saved, share storage and key, so the backward pass comes through the same door.
// Operators that touch no managed storage are not slowed down at all.
//
// There is one table and one fallback in a process, shared by all engines.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ullage::torchx {

// A key of an extension that nothing in torch itself uses.
inline constexpr c10::DispatchKey kInterceptionKey = c10::DispatchKey::DeferredInit;

// How the use of a managed storage ended.
enum class Outcome : std::uint8_t {
  kRead,
  kWritten,    // it was acquired to write, and the bytes may have changed
  kAbandoned,  // it was acquired to write, and the operator failed: nothing is to be kept
};

// The bytes behind one managed parameter. Called from whichever thread runs an operator.
class ManagedStorage {
 public:
  explicit ManagedStorage(std::string name) : name_(std::move(name)) {}
  virtual ~ManagedStorage() = default;
  ManagedStorage(const ManagedStorage&) = delete;
  ManagedStorage& operator=(const ManagedStorage&) = delete;

  // The bytes are present when this returns and stay until the matching Release. `to_write`: what
  // follows may change them. May throw.
  virtual void Acquire(bool to_write) = 0;
  // May throw when it has to write back.
  virtual void Release(Outcome outcome) = 0;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// From now on operators on tensors over `storage` that carry the key use `managed`. The table
// keeps the storage alive: the address of a freed one would be given to another tensor.
void Register(const c10::Storage& storage, ManagedStorage* managed);
// Not to be called while an operator runs on it; afterwards the ManagedStorage may be destroyed.
void Unregister(const c10::Storage& storage);
// Null when the tensor's storage is not registered.
ManagedStorage* FindManaged(const at::Tensor& tensor);

// While this lives, the bytes of those of `tensors` that are registered are present: for code that
// reads them without an operator of torch's. Undefined tensors are allowed.
class ReadingScope {
 public:
  explicit ReadingScope(const std::vector<at::Tensor>& tensors);
  ~ReadingScope();
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

 private:
  void LetGo() noexcept;
  std::vector<ManagedStorage*> held_;
};

// While this lives, what the current thread constructs lands on the Meta device, whatever device
// is asked for: a model is built without memory for its weights.
class ConstructOnMeta {
 public:
  ConstructOnMeta();
  ~ConstructOnMeta();
  ConstructOnMeta(const ConstructOnMeta&) = delete;
  ConstructOnMeta& operator=(const ConstructOnMeta&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  bool previous_;
};

// Operators intercepted since the process started, for tests and reports.
std::int64_t InterceptedOperators();

}  // namespace ullage::torchx
