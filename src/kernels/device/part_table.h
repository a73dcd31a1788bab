// Which block of a launch works on which of many ranges. Pure arithmetic, the same on the host.
// Internal to the room.
//
// Note [Many ranges in one launch]
// A launch costs the host several microseconds, which is longer than the device needs for the few
// hundred elements of a bias. So ranges are described by a table that travels with the launch as
// its argument, at most 4 KB, and the grid takes them tile by tile: each range is cut into tiles of
// kTile elements, the last one shorter, and tiles are numbered through all ranges.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ullage::kernels::device {

// The most bytes that the arguments of a kernel may have on every version of CUDA.
inline constexpr std::size_t kMaxArgumentBytes = 4096;

// A Part says where the arrays of a range are.
template <class Part, int kParts, int64_t kTileElements>
struct PartTable {
  static constexpr int kCapacity = kParts;
  static constexpr int64_t kTile = kTileElements;

  // `n` > 0. Not when IsFull().
  void Add(const Part& part, int64_t n) {
    parts[count] = part;
    numel[count] = n;
    tiles_end[count] = tiles() + static_cast<uint32_t>((n + kTile - 1) / kTile);
    ++count;
  }
  bool IsFull() const { return count == kCapacity; }
  constexpr uint32_t tiles() const { return count == 0 ? 0 : tiles_end[count - 1]; }

  int count = 0;
  uint32_t tiles_end[kCapacity];  // the number after that of a part's last tile
  int64_t numel[kCapacity];
  Part parts[kCapacity];
};

struct Tile {
  int part;
  int64_t begin, end;  // elements of the part
};

// Tile `number`, where `from` is the part of a tile before it, or 0.
template <class Table>
constexpr Tile TileAt(const Table& table, uint32_t number, int from) {
  int part = from;
  while (number >= table.tiles_end[part]) ++part;
  const uint32_t first = part == 0 ? 0 : table.tiles_end[part - 1];
  const int64_t begin = static_cast<int64_t>(number - first) * Table::kTile;
  const int64_t end = begin + Table::kTile;
  return {part, begin, end < table.numel[part] ? end : table.numel[part]};
}

}  // namespace ullage::kernels::device
