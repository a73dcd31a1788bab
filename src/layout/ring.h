// Where gathered units lie: a ring of bytes in which space is given out in turn.
//
// Only arithmetic: the ring knows offsets and owners, not memory. Units are placed one after the
// other; when the end is reached placement goes on at the start, over the units that were placed
// longest ago. A large unit thus does not make every place large, and nothing fragments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace ullage::layout {

class Ring {
 public:
  explicit Ring(std::int64_t capacity_bytes) : capacity_(capacity_bytes) {}

  struct Placement {
    std::int64_t offset;
    std::vector<int> evicted;  // units that lay there and are gone now
  };

  // Finds room for `unit`, evicting units for which `is_pinned` is false. Nothing when pinned
  // units leave no gap that is large enough; the ring is then unchanged.
  std::optional<Placement> Place(int unit, std::int64_t bytes,
                                 const std::function<bool(int)>& is_pinned);
  void Remove(int unit);
  void Clear();

  std::int64_t capacity() const { return capacity_; }

 private:
  struct Block {
    int unit;
    std::int64_t begin;
    std::int64_t end;
  };

  std::int64_t capacity_;
  std::int64_t next_ = 0;      // where the next placement is tried first
  std::vector<Block> blocks_;  // in no order; there are few
};

}  // namespace ullage::layout
