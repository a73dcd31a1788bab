// One piece of host memory of exactly the planned size, page-locked where it can be, from which
// the host tier's buffers are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tiers/numa.h"

namespace ullage::tiers {

struct HostArenaOptions {
  std::string name = "host arena";  // in messages
  int threads = 1;                  // that take the pages at the start; one a core is fastest
  int numa_node = kFirstTouch;      // a node's number, kFirstTouch or kInterleave

  // Page-locks a range and returns "", or returns the reason why it did not; cudaHostRegister on
  // machines with a GPU. Empty: the arena stays pageable, which is then nothing to mention.
  std::function<std::string(void*, std::size_t)> pin = nullptr;
  std::function<void(void*, std::size_t)> unpin = nullptr;
};

// All pages are there when the constructor returns: what does not fit is an error now and not a
// killed process later. The memory holds zeros. Sizes are rounded up to a page and no further;
// transparent huge pages are asked for where a whole one fits.
//
// A range that is page-locked is not inherited by forked children, since the kernel would have to
// copy all of it at the fork.
//
// Allocate() is for one thread at a time; the memory itself is anybody's.
class HostArena {
 public:
  HostArena() = default;

  // Throws OutOfMemoryError with what is requested and available; ConfigError for a node that
  // does not exist. When page-locking is refused, one warning says so and the arena is pageable.
  explicit HostArena(std::int64_t bytes, const HostArenaOptions& options = {});
  HostArena(HostArena&& other) noexcept;
  HostArena& operator=(HostArena&& other) noexcept;
  ~HostArena();

  std::byte* data() const { return data_; }  // aligned to a page; null when size() is 0
  std::int64_t size() const { return size_; }
  bool pinned() const { return pinned_; }

  // The offset of `bytes` bytes that are given out once and never taken back, at the next
  // multiple of `alignment`, a power of two of at most a page. Throws StateError, and gives out
  // nothing, when they do not fit: then the plan was wrong.
  std::int64_t Allocate(std::int64_t bytes, std::int64_t alignment = 4096);
  std::int64_t used() const { return used_; }        // end of the last allocation
  std::int64_t padding() const { return padding_; }  // of it, lost to alignment

 private:
  void Pin(const HostArenaOptions& options);

  std::string name_;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  bool pinned_ = false;
  std::function<void(void*, std::size_t)> unpin_;
  std::int64_t used_ = 0;
  std::int64_t padding_ = 0;
};

}  // namespace ullage::tiers
