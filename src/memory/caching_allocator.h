// A model of torch's CUDA caching allocator (2.11): what a sequence of requests on one stream makes
// it hand out and reserve. Pure arithmetic; nothing is allocated.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

namespace ullage::memory {

class CachingAllocator {
 public:
  struct Options {
    // expandable_segments: one segment for each pool, which grows in place.
    bool growing_segments = false;
    // large_segment_size_mb: the step that segments of requests above 1 MiB grow by.
    std::int64_t large_segment = std::int64_t{20} << 20;
  };

  CachingAllocator() : CachingAllocator(Options()) {}
  explicit CachingAllocator(const Options& options) : options_(options) {}

  using Id = std::int32_t;
  Id Allocate(std::int64_t bytes);  // above 0
  void Free(Id id);

  // As torch.cuda.memory_allocated and memory_reserved tell them.
  std::int64_t allocated() const { return allocated_; }
  std::int64_t reserved() const { return reserved_; }
  std::int64_t allocated_peak() const { return allocated_peak_; }
  std::int64_t reserved_peak() const { return reserved_peak_; }

 private:
  struct Block {
    std::int64_t address = 0, size = 0;
    Id before = -1, after = -1;  // neighbours in the same segment
    bool is_small = false;       // of the pool for requests up to 1 MiB
    bool is_mapped = true;
    bool is_given = false;
  };
  struct BySize {  // best fit: the smallest that is large enough, then the lowest
    std::int64_t size, address;
    Id id;
    auto operator<=>(const BySize&) const = default;
  };
  struct ByAddress {
    std::int64_t address;
    Id id;
    auto operator<=>(const ByAddress&) const = default;
  };
  struct Pool {
    std::set<BySize> free;
    std::set<ByAddress> unmapped;
  };

  Block& At(Id id) { return blocks_[static_cast<std::size_t>(id)]; }
  Pool& PoolOf(bool is_small) { return is_small ? small_ : large_; }
  std::int64_t GrainOf(bool is_small) const;
  std::int64_t ReachOf(Id id);
  Id NewBlock(std::int64_t address, std::int64_t size, bool is_small);
  Id FindFree(std::int64_t size, bool is_small);
  Id NewSegment(std::int64_t size, bool is_small);
  Id Grow(std::int64_t size, bool is_small);
  Id FindRoom(std::int64_t size, bool is_small);
  Id Map(Id id, std::int64_t size);
  void SplitAfter(Id id, std::int64_t size, bool is_rest_mapped);
  Id MergeFree(Id id);
  void Absorb(Id id, Id other);
  void TakeFromPool(Id id);

  const Options options_;
  std::vector<Block> blocks_;
  Pool small_, large_;
  std::int64_t next_address_ = 0;
  std::int64_t allocated_ = 0, reserved_ = 0, allocated_peak_ = 0, reserved_peak_ = 0;
};

}  // namespace ullage::memory
