// A plan is data: for every unit of parameters, where weights, gradients and optimizer state live,
// and the size of every buffer. Made from the settings; printed, compared and executed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "layout/unit.h"
#include "plan/tag.h"
#include "ullage/settings.h"

namespace ullage::plan {

// Which part of a unit's master weights and moments a rank holds.
enum class StateShare : std::uint8_t { kNone /* frozen */, kSlice, kWhole };

struct UnitPlan {
  layout::Unit unit;
  StateShare state = StateShare::kNone;
  bool has_master = false;  // 16-bit weights: an fp32 copy of what `state` says
  // Its gradients wait for their owners in a place of their own instead of the staging ring:
  // small parameters from all over the model share a unit, which fills during a whole backward.
  bool own_staging = false;
};

// Byte counts of one rank by tag.
using TagBytes = std::array<std::int64_t, kTagCount>;

struct Plan {
  int world_size = 1;
  int stage = 0;    // as asked for; on one rank nothing is sliced whatever the stage
  int moments = 2;  // fp32 numbers of optimizer state for each element
  DType weight_dtype = DType::kFloat32;
  std::vector<layout::ParameterSpec> parameters;
  std::vector<UnitPlan> units;
  // Elements of each rank's slice in one exchange of gradients.
  std::int64_t bucket_numel = 0;
  // The ring that gathered units live in. 0 when no unit is sliced.
  std::int64_t ring_bytes = 0;
  // The ring that gradients wait in until their owners have read them, the places of units that
  // do not use it, and the table that says what lies where. All 0 on one rank.
  std::int64_t staging_ring_bytes = 0;
  std::int64_t own_staging_bytes = 0;
  std::int64_t descriptor_bytes = 0;
  // For a peer's sums while every rank updates everything (stage 0).
  std::int64_t sums_tile_bytes = 0;
  // The buffers of an all-to-all, when ranks are on several hosts.
  std::int64_t exchange_scratch_bytes = 0;

  // What a rank allocates for this plan, by tag. The engine's ledger shows the same.
  TagBytes BytesOfRank(int rank) const;
  std::string ToJson() const;
  // A table for people: one row for each tag, one column for each rank, and the units below.
  std::string ToText() const;
};

// The bytes of one buffer, split into what holds elements and what is alignment.
struct BufferBytes {
  std::int64_t used = 0;
  std::int64_t padding = 0;
  std::int64_t total() const { return used + padding; }
};

BufferBytes WeightBytes(const UnitPlan& unit, int rank, int world_size);
BufferBytes MasterBytes(const UnitPlan& unit, int rank, int world_size);
BufferBytes MomentBytes(const UnitPlan& unit, int rank, int world_size, int moments);
BufferBytes GradientBytes(const UnitPlan& unit, int rank);
std::int64_t StagingBytes(const layout::Unit& unit, int world_size);  // one unit's gradients

// `all_local`: every rank is on this host, so gradients are read in place.
// A plan for `world_size` ranks. Throws nothing: settings are valid by now.
Plan MakePlan(const Settings& settings, std::vector<layout::ParameterSpec> parameters,
              int world_size, bool all_local);

}  // namespace ullage::plan
