// Makes pages present before anybody counts on them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ullage::tiers {

// Takes the memory of every page of [start, start + bytes), which is private, writable, aligned to
// a page and holds zeros or nothing, with up to `threads` threads at once. Returns 0 or an errno
// (ENOMEM when the memory cannot be had).
int PopulatePages(std::byte* start, std::int64_t bytes, int threads);

}  // namespace ullage::tiers
