// Splits a range of elements over threads where kernels allow it.
#pragma once

#include <cstdint>

#include "base/parallel.h"
#include "layout/unit.h"

namespace ullage::optim {

// Calls `body(first, last)` for parts of [begin, end) that start at multiples of 64 elements from
// `begin`: kernels need that alignment, and groups of 64 must stay together for the norm. Parts
// have about `grain` elements.
template <typename Body>
void ForRanges(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body) {
  ParallelFor(begin, end, layout::RoundUp(grain, layout::kAlignment), body);
}

}  // namespace ullage::optim
