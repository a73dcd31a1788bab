// Where the state of units lies in a rank's file on disk: in parts, so that one part is updated
// while the next are read and the last is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ullage::plan {

// What transfers to and from a disk begin and end at multiples of, in the file and in memory.
inline constexpr std::int64_t kDiskGrain = 4096;
// Parts that are in memory at the same time, and the elements of each at most.
inline constexpr std::size_t kDiskSlots = 4;
inline constexpr std::int64_t kDiskNumel = 4 << 20;

// Elements [begin, end) of what a rank holds of a unit: one array of each moment after the other,
// then what 16-bit weights lack of their fp32 values.
struct DiskPart {
  int unit = -1;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;  // in the file, a multiple of kDiskGrain
  std::int64_t bytes = 0;   // the same; the end of the last grain holds nothing
};

struct DiskLayout {
  std::vector<DiskPart> parts;  // by unit, then by element
  // By unit whose state is on disk: its first part, the others follow.
  std::vector<std::size_t> first;
  std::int64_t bytes = 0;          // of the file
  std::int64_t padding = 0;        // of them, what is left of grains
  std::int64_t largest_bytes = 0;  // of a part
};

// Sets the plan's disk_part_numel and disk_slot_bytes, when it is settled which state is on disk.
void SizeDiskSlots(Plan& plan);

// The same on every rank.
DiskLayout MakeDiskLayout(const Plan& plan);

}  // namespace ullage::plan
