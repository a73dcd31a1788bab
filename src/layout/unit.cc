#include "layout/unit.h"

#include <algorithm>

namespace ullage::layout {

std::vector<Unit> MakeUnits(const std::vector<ParameterSpec>& parameters, std::int64_t unit_bytes,
                            bool slice_weights, int world_size, std::int64_t slice_multiple) {
  std::vector<Unit> units;
  // At most one unit of each kind is open: small parameters that stay whole lie between large
  // ones, and each kind should still be packed densely. A unit takes its place in the order when
  // it is opened.
  struct Slot {
    std::size_t index;
    std::int64_t end;
  };
  std::vector<Slot> open;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& spec = parameters[i];
    if (spec.numel == 0) continue;
    const bool sliced = slice_weights && !spec.stays_whole;
    const std::int64_t room = RoundUp(spec.numel, kAlignment);
    auto slot = std::find_if(open.begin(), open.end(), [&](const Slot& s) {
      const Unit& unit = units[s.index];
      return unit.dtype == spec.dtype && unit.trainable == spec.trainable && unit.sliced == sliced;
    });
    if (slot != open.end() && (slot->end + room) * ElementBytes(spec.dtype) > unit_bytes) {
      open.erase(slot);
      slot = open.end();
    }
    if (slot == open.end()) {
      Unit unit;
      unit.dtype = spec.dtype;
      unit.trainable = spec.trainable;
      unit.sliced = sliced;
      units.push_back(std::move(unit));
      open.push_back({units.size() - 1, 0});
      slot = open.end() - 1;
    }
    Unit& unit = units[slot->index];
    unit.members.push_back({static_cast<int>(i), slot->end, spec.numel});
    unit.numel += spec.numel;
    slot->end += room;
    unit.slice_numel = RoundUp(slot->end, slice_multiple * world_size) / world_size;
  }
  return units;
}

std::vector<Piece> PiecesOfSlice(const Unit& unit, int rank) {
  const std::int64_t begin = rank * unit.slice_numel;
  const std::int64_t end = begin + unit.slice_numel;
  std::vector<Piece> pieces;
  for (const Member& member : unit.members) {
    const std::int64_t first = std::max(begin, member.offset);
    const std::int64_t last = std::min(end, member.offset + member.numel);
    if (first >= last) continue;
    pieces.push_back({member.parameter, first - member.offset, first - begin, last - first});
  }
  return pieces;
}

std::int64_t OwnedNumel(const Unit& unit, int rank) {
  std::int64_t numel = 0;
  for (const Piece& piece : PiecesOfSlice(unit, rank)) numel += piece.numel;
  return numel;
}

}  // namespace ullage::layout
