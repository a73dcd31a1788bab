#include "layout/ring.h"

#include <algorithm>

namespace ullage::layout {

std::optional<Ring::Placement> Ring::Place(int unit, std::int64_t bytes,
                                           const std::function<bool(int)>& is_pinned) {
  if (bytes > capacity_) return std::nullopt;
  // Candidates: where the last placement ended, then behind each pinned block, then the start.
  std::vector<std::int64_t> starts = {next_};
  std::vector<std::int64_t> later;
  for (const Block& block : blocks_) {
    if (is_pinned(block.unit)) later.push_back(block.end);
  }
  later.push_back(0);
  const auto distance = [this](std::int64_t start) {
    return start >= next_ ? start - next_ : start - next_ + capacity_;
  };
  std::sort(later.begin(), later.end(),
            [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  starts.insert(starts.end(), later.begin(), later.end());

  for (const std::int64_t begin : starts) {
    const std::int64_t end = begin + bytes;
    if (end > capacity_) continue;
    const auto overlaps = [&](const Block& block) {
      return block.begin < end && begin < block.end;
    };
    const bool blocked = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      return overlaps(block) && is_pinned(block.unit);
    });
    if (blocked) continue;
    Placement placement{begin, {}};
    for (const Block& block : blocks_) {
      if (overlaps(block)) placement.evicted.push_back(block.unit);
    }
    std::erase_if(blocks_, overlaps);
    blocks_.push_back({unit, begin, end});
    next_ = end == capacity_ ? 0 : end;
    return placement;
  }
  return std::nullopt;
}

void Ring::Remove(int unit) {
  std::erase_if(blocks_, [unit](const Block& block) { return block.unit == unit; });
}

void Ring::Clear() {
  blocks_.clear();
  next_ = 0;
}

}  // namespace ullage::layout
