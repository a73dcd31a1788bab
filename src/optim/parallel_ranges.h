// Splits a range of elements over torch's intra-op threads where kernels allow it.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "layout/unit.h"

namespace ullage::optim {

// Calls `body(first, last)` for parts of [begin, end) that start at multiples of 64 elements from
// `begin`: kernels need that alignment, and groups of 64 must stay together for the norm. Parts
// smaller than `grain` elements are not worth a thread.
template <typename Body>
void ForRanges(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body) {
  const std::int64_t blocks = layout::RoundUp(end - begin, layout::kAlignment) / layout::kAlignment;
  at::parallel_for(0, blocks, grain / layout::kAlignment,
                   [&](std::int64_t first_block, std::int64_t last_block) {
                     body(begin + first_block * layout::kAlignment,
                          std::min(begin + last_block * layout::kAlignment, end));
                   });
}

}  // namespace ullage::optim
