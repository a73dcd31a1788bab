#include "torchx/interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "torchx/operator_traits.h"
#include "torchx/version.h"
#include "ullage/error.h"

namespace ullage::torchx {
namespace {

struct Entry {
  c10::Storage storage;
  ManagedStorage* managed;
};

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Entry> entries;
};

Table& GetTable() {
  static auto* table = new Table;
  return *table;
}

thread_local bool construct_on_meta = false;
std::atomic<std::int64_t> intercepted_operators{0};

// One managed storage that an operator call touches.
struct Use {
  c10::StorageImpl* storage;
  ManagedStorage* managed;
  bool writes;
};
using Uses = c10::SmallVector<Use, 4>;

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(kInterceptionKey) ||
      !tensor.has_storage()) {
    return nullptr;
  }
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void Collect(const at::Tensor& tensor, bool writes, Uses& uses) {
  const c10::StorageImpl* storage = StorageOf(tensor);
  if (storage == nullptr) return;
  Table& table = GetTable();
  std::shared_lock lock(table.mutex);
  const auto found = table.entries.find(storage);
  if (found == table.entries.end()) return;
  uses.push_back({found->second.storage.unsafeGetStorageImpl(), found->second.managed, writes});
}

void Collect(const c10::IValue& value, bool writes, Uses& uses) {
  if (value.isTensor()) return Collect(value.toTensor(), writes, uses);
  if (!value.isList()) return;
  for (const c10::IValue& element : value.toListRef()) Collect(element, writes, uses);
}

// Holds the bytes of `uses` for the time of one operator.
class Hold {
 public:
  explicit Hold(const Uses& uses) : uses_(uses) {
    try {
      for (; acquired_ < uses_.size(); ++acquired_)
        uses_[acquired_].managed->Acquire(uses_[acquired_].writes);
    } catch (...) {
      LetGo();
      throw;
    }
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { LetGo(); }  // without write-back: the operator threw

  // Lets go in reverse order, writing back.
  void Finish() {
    while (acquired_ > 0) {
      const Use& use = uses_[--acquired_];
      use.managed->Release(use.writes ? Outcome::kWritten : Outcome::kRead);
    }
  }

 private:
  void LetGo() noexcept {
    while (acquired_ > 0) {
      try {
        const Use& use = uses_[--acquired_];
        use.managed->Release(use.writes ? Outcome::kAbandoned : Outcome::kRead);
      } catch (...) {  // a second error while the first is on its way
      }
    }
  }

  const Uses& uses_;
  std::size_t acquired_ = 0;
};

// Managed storages are made so that torch refuses to resize them, without saying whose they are.
[[noreturn]] void ThrowByName(const c10::Error& error, const Uses& uses, const std::string& op) {
  if (std::string_view(error.what_without_backtrace()).find("resize storage that is not") ==
      std::string_view::npos) {
    throw;
  }
  for (const Use& use : uses) {
    if (!use.writes) continue;
    throw StateError(fmt::format("operator {} would resize parameter '{}' of {} bytes", op,
                                 use.managed->name(), use.storage->nbytes()),
                     "a managed parameter keeps its size; resize before the engine is made");
  }
  throw;
}

// c10d operators return before they are done, and the bytes would be gone by then.
void PrepareCollective(const OperatorTraits& traits, torch::jit::Stack* stack, Uses& uses) {
  if (uses.empty()) return;
  if (traits.name.rfind("c10d::recv", 0) == 0) {
    throw StateError(fmt::format("receiving into parameter '{}'", uses[0].managed->name()),
                     "receive into a temporary tensor, then copy_ it into the parameter");
  }
  // Every collective works on a copy, except that its result is then lost: allow only sends.
  if (traits.name != "c10d::send") {
    throw StateError(fmt::format("{} on parameter '{}'", traits.name, uses[0].managed->name()),
                     "clone the parameter, run the collective on the clone, then copy_ it back");
  }
  c10::IValue& tensors = torch::jit::peek(*stack, 0, traits.writes.size());
  std::vector<at::Tensor> copies;
  {
    Hold hold(uses);
    c10::impl::ExcludeDispatchKeyGuard exclude(kInterceptionKey);
    for (const at::Tensor& tensor : tensors.toTensorVector()) copies.push_back(at::clone(tensor));
  }
  tensors = c10::IValue(copies);
  uses.clear();
}

void RewriteDeviceToMeta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    torch::jit::peek(*stack, i, arguments.size()) = c10::IValue(c10::Device(c10::kMeta));
  }
}

void Intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptionKey);
  if (construct_on_meta) {
    RewriteDeviceToMeta(op, stack);
    c10::impl::ExcludeDispatchKeyGuard exclude(kInterceptionKey);
    op.redispatchBoxed(below, stack);
    return;
  }
  intercepted_operators.fetch_add(1, std::memory_order_relaxed);
  const OperatorTraits& traits = TraitsOf(op);
  if (traits.calls_others) {
    op.redispatchBoxed(below, stack);  // the key stays: inner operators come through here again
    return;
  }
  Uses uses;
  const auto arguments = torch::jit::last(*stack, traits.writes.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (traits.is_view && traits.alias[i]) continue;
    Collect(arguments[i], traits.writes[i], uses);
  }
  if (traits.is_collective) PrepareCollective(traits, stack, uses);

  Hold hold(uses);
  try {
    if (traits.is_foreign || traits.is_view) {
      op.redispatchBoxed(below, stack);  // may call others on other weights
    } else {
      c10::impl::ExcludeDispatchKeyGuard exclude(kInterceptionKey);
      op.redispatchBoxed(below, stack);
    }
  } catch (const c10::Error& error) {
    ThrowByName(error, uses, traits.name);
  }
  hold.Finish();
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Intercept>());
}

}  // namespace

void Register(const c10::Storage& storage, ManagedStorage* managed) {
  InstallFallthroughs();
  Table& table = GetTable();
  std::unique_lock lock(table.mutex);
  table.entries.insert_or_assign(storage.unsafeGetStorageImpl(), Entry{storage, managed});
}

void Unregister(const c10::Storage& storage) {
  Table& table = GetTable();
  std::unique_lock lock(table.mutex);
  table.entries.erase(storage.unsafeGetStorageImpl());
}

ManagedStorage* FindManaged(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  Table& table = GetTable();
  std::shared_lock lock(table.mutex);
  const auto found = table.entries.find(tensor.storage().unsafeGetStorageImpl());
  return found == table.entries.end() ? nullptr : found->second.managed;
}

ReadingScope::ReadingScope(const std::vector<at::Tensor>& tensors) {
  try {
    for (const at::Tensor& tensor : tensors) {
      ManagedStorage* managed = FindManaged(tensor);
      if (managed == nullptr) continue;
      managed->Acquire(/*to_write=*/false);
      held_.push_back(managed);
    }
  } catch (...) {
    LetGo();
    throw;
  }
}

ReadingScope::~ReadingScope() {
  LetGo();
}

void ReadingScope::LetGo() noexcept {
  for (; !held_.empty(); held_.pop_back()) {
    try {
      held_.back()->Release(Outcome::kRead);
    } catch (...) {  // nothing was written
    }
  }
}

ConstructOnMeta::ConstructOnMeta() : include_(kInterceptionKey), previous_(construct_on_meta) {
  construct_on_meta = true;
}

ConstructOnMeta::~ConstructOnMeta() {
  construct_on_meta = previous_;
}

std::int64_t InterceptedOperators() {
  return intercepted_operators.load();
}

}  // namespace ullage::torchx
