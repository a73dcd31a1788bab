#include "torchx/storage_watch.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <utility>

namespace ullage::torchx {
namespace {

// Whom to tell; nobody once the watch has ended, which storages may outlive.
struct Ear {
  StorageListener* listener = nullptr;
};

thread_local std::shared_ptr<Ear> meta_ear;

// Note [Counting on Meta]
// torch's own allocator for Meta keeps nothing of a storage's life: it hands out null. Ours does
// the same with a context that tells when it ends, where somebody watches. It stays for the life of
// the process.
class MetaAllocator final : public c10::Allocator {
  struct Held {
    std::shared_ptr<Ear> ear;
  };

  static void End(void* context) {
    const std::unique_ptr<Held> held(static_cast<Held*>(context));
    if (held->ear->listener != nullptr) held->ear->listener->Freed(held.get());
  }
  static void EndNothing(void*) {}

 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kMeta);
    if (meta_ear == nullptr || bytes == 0) return {nullptr, nullptr, &EndNothing, device};
    auto held = std::make_unique<Held>(Held{meta_ear});
    meta_ear->listener->Allocated(held.get(), static_cast<std::int64_t>(bytes));
    return {nullptr, held.release(), &End, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

void InstallMetaAllocator() {
  constexpr std::uint8_t kAboveTorchs = 1;
  static const bool installed = [] {
    c10::SetAllocator(c10::kMeta, new MetaAllocator, kAboveTorchs);
    return true;
  }();
  static_cast<void>(installed);
}

// What torch's allocators tell a profiler, which is whoever holds this slot of the thread.
class Reports final : public c10::MemoryReportingInfoBase {
 public:
  Reports(c10::DeviceType type, std::shared_ptr<Ear> ear) : type_(type), ear_(std::move(ear)) {}

  void reportMemoryUsage(void* storage, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (device.type() != type_ || ear_->listener == nullptr) return;
    if (bytes > 0) {
      ear_->listener->Allocated(storage, bytes);
    } else {
      ear_->listener->Freed(storage);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  const c10::DeviceType type_;
  const std::shared_ptr<Ear> ear_;
};

}  // namespace

struct StorageWatch::Report {
  std::shared_ptr<Ear> ear;
  std::unique_ptr<c10::DebugInfoGuard> slot;  // not on Meta
};

StorageWatch::StorageWatch(c10::DeviceType type, StorageListener& listener)
    : report_(std::make_unique<Report>()) {
  report_->ear = std::make_shared<Ear>(Ear{&listener});
  if (type == c10::kMeta) {
    InstallMetaAllocator();
    TORCH_INTERNAL_ASSERT(meta_ear == nullptr, "two watches of one thread");
    meta_ear = report_->ear;
  } else {
    report_->slot = std::make_unique<c10::DebugInfoGuard>(
        c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reports>(type, report_->ear));
  }
}

StorageWatch::~StorageWatch() {
  if (report_->slot == nullptr) meta_ear = nullptr;
  report_->slot.reset();
  report_->ear->listener = nullptr;
}

}  // namespace ullage::torchx
