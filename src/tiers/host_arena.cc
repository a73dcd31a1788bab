#include "tiers/host_arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "tiers/available_memory.h"
#include "tiers/populate.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr const char* kMakeRoom =
    "free host memory or raise the memory limit of this container; more ranks, or "
    "offload_optimizer and offload_param with \"device\": \"nvme\", make each rank's share smaller";

std::int64_t PageBytes() {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  return page;
}

[[noreturn]] void ThrowRefused(const std::string& name, std::int64_t bytes, const char* step,
                               int error) {
  const AvailableMemory available = FindAvailableMemory();
  throw OutOfMemoryError(
      fmt::format("{}: {} ({} bytes) of host memory refused by {}: {}; {} available ({})", name,
                  FormatBytes(bytes), bytes, step, std::strerror(error),
                  FormatBytes(available.bytes), available.bound),
      std::string(kMakeRoom) + "; see also the limit on address space (ulimit -v)");
}

// Address space of `bytes`, starting where a huge page can when it is large enough for one.
std::byte* Map(const std::string& name, std::int64_t bytes) {
  const bool large = bytes >= kHugePage;
  const auto size = static_cast<std::size_t>(bytes);
  const std::size_t reserved = size + static_cast<std::size_t>(large ? kHugePage : 0);
  void* mapped = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) ThrowRefused(name, bytes, "mmap", errno);
  auto* start = static_cast<std::byte*>(mapped);
  if (!large) return start;

  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t before = (kHugePage - address % kHugePage) % kHugePage;
  if (before > 0) ::munmap(start, before);
  start += before;
  if (const std::size_t after = reserved - before - size; after > 0) ::munmap(start + size, after);
  ::madvise(start, size, MADV_HUGEPAGE);  // a wish: a kernel without it serves small pages
  return start;
}

std::string MemlockLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return FormatBytes(static_cast<std::int64_t>(limit.rlim_cur));
}

}  // namespace

HostArena::HostArena(std::int64_t bytes, const HostArenaOptions& options) : name_(options.name) {
  if (bytes < 0 || bytes > std::numeric_limits<std::int64_t>::max() - 2 * kHugePage) {
    throw StateError(fmt::format("{}: planned with a size of {} bytes", name_, bytes),
                     "this is a fault of the plan; please report it");
  }
  if (bytes == 0) return;
  const std::int64_t rounded = (bytes + PageBytes() - 1) / PageBytes() * PageBytes();

  // The system grants any size and kills a process when the pages run out.
  if (const AvailableMemory available = FindAvailableMemory(); rounded > available.bytes) {
    throw OutOfMemoryError(
        fmt::format("{}: {} ({} bytes) of host memory requested, {} available ({})", name_,
                    FormatBytes(rounded), rounded, FormatBytes(available.bytes), available.bound),
        kMakeRoom);
  }
  HostArena made;  // gives back what it holds when a later step throws
  made.data_ = Map(name_, rounded);
  made.size_ = rounded;
  made.name_ = name_;
  const std::string refusal =
      PlacePages(made.data_, static_cast<std::size_t>(rounded), options.numa_node);
  if (!refusal.empty()) {
    LogWarn("tiers", fmt::format("{}: pages come from the nodes of the threads that touch them "
                                 "first, since mbind was refused ({})",
                                 name_, refusal));
  }
  if (const int error = PopulatePages(made.data_, rounded, options.threads); error != 0) {
    ThrowRefused(name_, rounded, "the system", error);
  }
  if (options.pin) made.Pin(options);
  *this = std::move(made);
}

void HostArena::Pin(const HostArenaOptions& options) {
  const auto size = static_cast<std::size_t>(size_);
  const std::string reason = options.pin(data_, size);
  if (reason.empty()) {
    pinned_ = true;
    unpin_ = options.unpin;
    ::madvise(data_, size, MADV_DONTFORK);
    return;
  }
  // RLIMIT_MEMLOCK is named and not asked beforehand: drivers that lock pages need not obey it.
  LogWarn("tiers",
          fmt::format("{}: {} stay pageable and copies to the device are slower, since "
                      "page-locking was refused ({}); raise `ulimit -l` (now {}) or use less "
                      "host memory",
                      name_, FormatBytes(size_), reason, MemlockLimit()));
}

HostArena::HostArena(HostArena&& other) noexcept {
  *this = std::move(other);
}

HostArena& HostArena::operator=(HostArena&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(pinned_, other.pinned_);
  std::swap(unpin_, other.unpin_);
  std::swap(used_, other.used_);
  std::swap(padding_, other.padding_);
  return *this;
}

HostArena::~HostArena() {
  if (data_ == nullptr) return;
  if (pinned_ && unpin_) unpin_(data_, static_cast<std::size_t>(size_));
  ::munmap(data_, static_cast<std::size_t>(size_));
}

std::int64_t HostArena::Allocate(std::int64_t bytes, std::int64_t alignment) {
  const bool valid = bytes >= 0 && alignment > 0 && alignment <= PageBytes() &&
                     std::has_single_bit(static_cast<std::uint64_t>(alignment));
  const std::int64_t offset =
      valid ? (used_ + alignment - 1) / alignment * alignment : std::int64_t{0};
  if (!valid || offset > size_ || bytes > size_ - offset) {
    throw StateError(
        fmt::format("{}: {} bytes aligned to {} do not fit: {} of {} bytes are given out", name_,
                    bytes, alignment, used_, size_),
        "this is a fault of the plan; please report it");
  }
  padding_ += offset - used_;
  used_ = offset + bytes;
  return offset;
}

}  // namespace ullage::tiers
