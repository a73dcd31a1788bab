// Units and slices: how parameters are packed into flat buffers and who owns which part.
//
// Pure arithmetic, used by the engine and by predictions alike, so that sizes stand once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace ullage::layout {

// Every parameter starts at a multiple of this many elements of its unit, and every slice too.
// 64 elements are at least 128 bytes: kernels see the alignment that they see without the engine
// (other alignments give other bits), and a group of 64 elements of a parameter never straddles
// two slices, which makes the gradient norm independent of the number of ranks.
inline constexpr std::int64_t kAlignment = 64;

constexpr std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What the layout needs to know of one distinct parameter (tied parameters are one).
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  DType dtype = DType::kFloat32;  // of the weight that the model computes with
  bool trainable = true;
  bool stays_whole = false;  // never sliced, whatever the stage
};

// One parameter inside a unit; offset and numel in elements.
struct Member {
  int parameter = 0;  // index into the list of specs
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

// Consecutive parameters of one dtype, trainability and residency in one flat buffer. Rank r
// owns elements [r * slice_numel, (r + 1) * slice_numel).
struct Unit {
  DType dtype = DType::kFloat32;
  bool trainable = true;
  bool sliced = false;  // weights are sliced over the ranks, too; else each rank holds all of them
  std::vector<Member> members;
  std::int64_t numel = 0;        // of the members, without padding
  std::int64_t slice_numel = 0;  // a multiple of kAlignment

  std::int64_t padded_numel(int world_size) const { return slice_numel * world_size; }
};

// A part of a parameter that lies in one rank's slice. All in elements.
struct Piece {
  int parameter = 0;
  std::int64_t parameter_offset = 0;  // where the piece starts in the parameter
  std::int64_t slice_offset = 0;      // where it starts in the slice
  std::int64_t numel = 0;
};

// Packs `parameters` in their order into units of about `unit_bytes` (a larger parameter gets a
// unit of its own). `slice_weights`: whether weights are sliced (stage 3 on more than one rank).
// Every slice has a multiple of `slice_multiple` elements, itself one of kAlignment. Parameters
// without elements belong to no unit.
std::vector<Unit> MakeUnits(const std::vector<ParameterSpec>& parameters, std::int64_t unit_bytes,
                            bool slice_weights, int world_size,
                            std::int64_t slice_multiple = kAlignment);

// The pieces of `unit` that `rank` owns, in the order of the slice.
std::vector<Piece> PiecesOfSlice(const Unit& unit, int rank);

// How many elements of the slice of `rank` belong to parameters; the rest is padding.
std::int64_t OwnedNumel(const Unit& unit, int rank);

}  // namespace ullage::layout
