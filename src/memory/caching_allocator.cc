// The rules are those of c10/cuda/CUDACachingAllocator.cpp, seen from outside: requests are rounded
// to 512 bytes, come from a pool for small or for large ones by best fit, and what is left of a
// block is split off when it is worth it; what is freed is merged with free neighbours.
#include "memory/caching_allocator.h"

#include <algorithm>
#include <utility>

#include "layout/unit.h"

namespace ullage::memory {
namespace {

using layout::RoundUp;

constexpr std::int64_t kGrain = 512;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kSmall = kMiB;  // the largest request of the small pool
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kLargeRequest = 10 * kMiB;  // from here a segment is as large as it must be
constexpr std::int64_t kLargeGrain = 2 * kMiB;
// Of a segment that grows: addresses, more than any device has memory.
constexpr std::int64_t kReach = std::int64_t{1} << 46;

}  // namespace

std::int64_t CachingAllocator::GrainOf(bool is_small) const {
  return is_small ? kSmallSegment : options_.large_segment;
}

CachingAllocator::Id CachingAllocator::NewBlock(std::int64_t address, std::int64_t size,
                                                bool is_small) {
  blocks_.push_back({.address = address, .size = size, .is_small = is_small});
  return static_cast<Id>(blocks_.size()) - 1;
}

CachingAllocator::Id CachingAllocator::Allocate(std::int64_t bytes) {
  const std::int64_t size = RoundUp(std::max(bytes, kGrain), kGrain);
  const bool is_small = size <= kSmall;
  Id id = FindFree(size, is_small);
  if (id < 0) id = options_.growing_segments ? Grow(size, is_small) : NewSegment(size, is_small);
  const std::int64_t rest = At(id).size - size;
  if (is_small || options_.growing_segments ? rest >= kGrain : rest > kSmall) {
    SplitAfter(id, size, /*is_rest_mapped=*/true);
  }
  At(id).is_given = true;
  allocated_ += At(id).size;
  allocated_peak_ = std::max(allocated_peak_, allocated_);
  reserved_peak_ = std::max(reserved_peak_, reserved_);
  return id;
}

void CachingAllocator::Free(Id id) {
  Block& block = At(id);
  allocated_ -= block.size;
  block.is_given = false;
  const Id merged = MergeFree(id);
  PoolOf(At(merged).is_small).free.insert({At(merged).size, At(merged).address, merged});
}

// With what may be mapped behind it.
std::int64_t CachingAllocator::ReachOf(Id id) {
  const Block& block = At(id);
  const bool grows = block.after >= 0 && !At(block.after).is_mapped;
  return block.size + (grows ? At(block.after).size : 0);
}

CachingAllocator::Id CachingAllocator::FindFree(std::int64_t size, bool is_small) {
  std::set<BySize>& free = PoolOf(is_small).free;
  auto found = free.lower_bound({size, -1, -1});
  if (found == free.end()) return -1;
  if (options_.growing_segments) {
    // The block at the growing end counts with all that it can grow by.
    for (auto next = std::next(found); next != free.end() && ReachOf(next->id) < ReachOf(found->id);
         ++next) {
      found = next;
    }
  }
  const Id id = found->id;
  free.erase(found);
  return id;
}

CachingAllocator::Id CachingAllocator::NewSegment(std::int64_t size, bool is_small) {
  const std::int64_t bytes = is_small               ? kSmallSegment
                             : size < kLargeRequest ? options_.large_segment
                                                    : RoundUp(size, kLargeGrain);
  reserved_ += bytes;
  return NewBlock(std::exchange(next_address_, next_address_ + bytes), bytes, is_small);
}

// The first place where free and unmapped blocks that follow each other hold `size`.
CachingAllocator::Id CachingAllocator::FindRoom(std::int64_t size, bool is_small) {
  for (const ByAddress& unmapped : PoolOf(is_small).unmapped) {
    Id first = unmapped.id;
    const Id before = At(first).before;
    if (before >= 0 && !At(before).is_given) first = before;
    std::int64_t room = 0;
    for (Id id = first; id >= 0 && !At(id).is_given && room < size; id = At(id).after) {
      room += At(id).size;
    }
    if (room >= size) return first;
  }
  const Id segment =
      NewBlock(std::exchange(next_address_, next_address_ + kReach), kReach, is_small);
  At(segment).is_mapped = false;
  PoolOf(is_small).unmapped.insert({At(segment).address, segment});
  return segment;
}

CachingAllocator::Id CachingAllocator::Grow(std::int64_t size, bool is_small) {
  Id id = FindRoom(size, is_small);
  if (!At(id).is_mapped) id = Map(id, std::min(At(id).size, size));
  while (At(id).size < size) {
    const Id next = At(id).after;
    id = Map(next, std::min(size - At(id).size, At(next).size));
  }
  TakeFromPool(id);
  return id;
}

// Maps the first `size` bytes, rounded up to whole steps, and merges them with free neighbours.
CachingAllocator::Id CachingAllocator::Map(Id id, std::int64_t size) {
  const bool is_small = At(id).is_small;
  PoolOf(is_small).unmapped.erase({At(id).address, id});
  const std::int64_t mapped = std::min(RoundUp(size, GrainOf(is_small)), At(id).size);
  if (mapped < At(id).size) SplitAfter(id, mapped, /*is_rest_mapped=*/false);
  At(id).is_mapped = true;
  reserved_ += mapped;
  const Id merged = MergeFree(id);
  PoolOf(is_small).free.insert({At(merged).size, At(merged).address, merged});
  return merged;
}

void CachingAllocator::SplitAfter(Id id, std::int64_t size, bool is_rest_mapped) {
  const Id rest = NewBlock(At(id).address + size, At(id).size - size, At(id).is_small);
  Block& block = At(id);
  Block& behind = At(rest);
  behind.before = id;
  behind.after = std::exchange(block.after, rest);
  behind.is_mapped = is_rest_mapped;
  if (behind.after >= 0) At(behind.after).before = rest;
  block.size = size;
  Pool& pool = PoolOf(block.is_small);
  if (is_rest_mapped) {
    pool.free.insert({behind.size, behind.address, rest});
  } else {
    pool.unmapped.insert({behind.address, rest});
  }
}

// Joins a free block with its free neighbours; none of the three is in the pool afterwards.
CachingAllocator::Id CachingAllocator::MergeFree(Id id) {
  const auto is_free = [this](Id other) {
    return other >= 0 && !At(other).is_given && At(other).is_mapped;
  };
  if (const Id after = At(id).after; is_free(after)) {
    TakeFromPool(after);
    Absorb(id, after);
  }
  if (const Id before = At(id).before; is_free(before)) {
    TakeFromPool(before);
    Absorb(before, id);
    return before;
  }
  return id;
}

void CachingAllocator::Absorb(Id id, Id other) {
  At(id).size += At(other).size;
  At(id).after = At(other).after;
  if (At(id).after >= 0) At(At(id).after).before = id;
}

void CachingAllocator::TakeFromPool(Id id) {
  PoolOf(At(id).is_small).free.erase({At(id).size, At(id).address, id});
}

}  // namespace ullage::memory
