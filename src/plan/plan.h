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
  // Where the held weights, what they lack of their fp32 values, the moments and the gradient sums
  // lie. They are updated there.
  Tier home = Tier::kDevice;
  // What weights lack of their fp32 values and the moments lie on disk instead, and pass through
  // the host's memory for their update. Weights and gradient sums have their home on the host then:
  // operators and peers read the weights, and gradients are added as they come, in any order.
  bool state_on_disk = false;
  // All weights are on the device all the time. Else they are gathered when operators ask.
  bool resident = true;
  // Its gradients wait for their owners in a place of their own instead of the staging ring:
  // small parameters from all over the model share a unit, which fills during a whole backward.
  bool own_staging = false;

  Tier state_tier() const { return state_on_disk ? Tier::kDisk : home; }
};

// Byte counts of one rank by tag.
using TagBytes = std::array<std::int64_t, kTagCount>;

// What a plan is made for.
struct Target {
  int world_size = 1;
  bool all_local = true;  // every rank is on this host, so gradients are read in place
  bool on_cuda = false;   // operators run on a CUDA device
  // Of the device, when ullage.device_memory says how much of it there is: the most that operators
  // hold at a time (activations, workspaces), and what lies there outside torch's allocator.
  std::int64_t operator_bytes = 0;
  std::int64_t outside_bytes = 0;
  // Of the host, what saves in the background may hold at most (EngineOptions).
  std::int64_t save_buffer_bytes = 0;
};

struct Plan {
  int world_size = 1;
  int stage = 0;    // as asked for; on one rank nothing is sliced whatever the stage
  int moments = 2;  // fp32 numbers of optimizer state for each element
  DType weight_dtype = DType::kFloat32;
  bool on_cuda = false;
  // fp32; but where nothing is ever added to a gradient (one rank, one micro-step) it is kept as it
  // came. A unit that receives a second one all the same gets fp32 sums at that moment.
  bool sums_in_weight_dtype = false;
  std::vector<layout::ParameterSpec> parameters;
  std::vector<UnitPlan> units;
  // Elements of each rank's slice in one exchange of gradients.
  std::int64_t bucket_numel = 0;
  // The ring that gathered units live in. 0 when every unit is resident.
  std::int64_t ring_bytes = 0;
  // Of it, what may be filled ahead of use.
  std::int64_t prefetch_bytes = 0;
  // Device memory through which state is streamed from the host and back for its update.
  std::int64_t stream_bytes = 0;
  // Host memory that gradients land in on their way from the device to fp32 sums on the host.
  std::int64_t landing_bytes = 0;
  // The ring on the device that gradients wait in for their copies to the host. On several ranks
  // they wait where peers read them.
  std::int64_t crossing_bytes = 0;
  // Elements of a part of a unit whose state is on disk (plan/disk_layout.h), and the host memory
  // that parts pass through. 0 when there is no such unit.
  std::int64_t disk_part_numel = 0;
  std::int64_t disk_slot_bytes = 0;
  // The ring that gradients wait in until their owners have read them, the places of units that
  // do not use it, and the table that says what lies where. All 0 on one rank.
  std::int64_t staging_ring_bytes = 0;
  std::int64_t own_staging_bytes = 0;
  std::int64_t descriptor_bytes = 0;
  // Host memory that keeps state for a checkpoint which is being written; no more than a rank
  // saves.
  std::int64_t save_buffer_bytes = 0;
  // For a peer's sums while every rank updates everything (stage 0).
  std::int64_t sums_tile_bytes = 0;
  // The buffers of an all-to-all, when ranks are on several hosts.
  std::int64_t exchange_scratch_bytes = 0;
  // ullage.device_memory, 0 without one, and what of it is not the engine's (Target).
  std::int64_t device_budget = 0;
  std::int64_t operator_bytes = 0;
  std::int64_t outside_bytes = 0;
  // The budget decided what lies on the host, since the settings left it open.
  bool is_placed_by_budget = false;

  // What a rank allocates for this plan, by tag. The engine's ledger shows the same.
  TagBytes BytesOfRank(int rank) const;
  TagBytes BytesOfRank(int rank, Tier tier) const;
  // The parts that make it up: of one unit, and of the buffers that units share.
  TagBytes BytesOfUnit(int unit, int rank, Tier tier) const;
  TagBytes BytesOfBuffers(Tier tier) const;
  // Whether a unit is updated while the device goes on with other work: its state is on the host
  // and operators run elsewhere.
  bool IsUpdatedBeside(int unit) const {
    const UnitPlan& plan = units[static_cast<std::size_t>(unit)];
    return on_cuda && plan.unit.trainable && plan.home == Tier::kHost;
  }
  // At least what a rank writes of parameters and moments to a checkpoint, as fp32.
  std::int64_t SavedBytes() const;
  // Elements of a unit that a rank holds, padding included: its slice, or all of them.
  std::int64_t HeldNumel(int unit) const;
  // What an update of the unit reads and writes on this rank.
  std::int64_t UpdateBytes(int unit) const;
  DType sums_dtype(int unit) const {
    return sums_in_weight_dtype ? units[static_cast<std::size_t>(unit)].unit.dtype
                                : DType::kFloat32;
  }
  std::string ToJson() const;
  // A table for people: one row for each tag, one column for each rank, and the units below.
  std::string ToText() const;
  // With a budget: what lies where, how much it is, and why.
  std::vector<std::string> BudgetLines() const;
};

// The bytes of one buffer, split into what holds elements and what is alignment.
struct BufferBytes {
  std::int64_t used = 0;
  std::int64_t padding = 0;
  std::int64_t total() const { return used + padding; }
};

// Of the buffers of one unit. Weights that a resident unit has beside those at its home count as
// ResidentBytes; at home on the device they are the same.
BufferBytes HomeBytes(const UnitPlan& unit, int rank, int world_size);
BufferBytes ResidentBytes(const UnitPlan& unit, int world_size);
BufferBytes MasterBytes(const UnitPlan& unit, int rank, int world_size);
BufferBytes MomentBytes(const UnitPlan& unit, int rank, int world_size, int moments);
BufferBytes GradientBytes(const UnitPlan& unit, int rank, DType sums_dtype);
std::int64_t StagingBytes(const layout::Unit& unit, int world_size);  // one unit's gradients
// What measuring the gradient on a device takes there, and on the host: a result for each parameter
// and each unit. Nothing when operators run on the host.
inline constexpr std::int64_t kNormResultBytes = 552;
BufferBytes NormBytes(const Plan& plan);

// What gradients on their way to the host hold on the device: those of about one layer, since a
// layer that is recomputed gives all of them at its end. A 24th of what goes there, within these.
inline constexpr std::int64_t kLeastCrossingBytes = std::int64_t{64} << 20;
inline constexpr std::int64_t kMostCrossingBytes = std::int64_t{512} << 20;

// The most that they hold on the host before they are added to fp32 sums. Backward passes bring
// them faster than the host's memory lets them be added; it catches up in the next forward.
inline constexpr std::int64_t kLandingBytes = std::int64_t{2} << 30;

// Parts of units that are streamed through the device at the same time, and the elements of each.
inline constexpr std::size_t kStreamSlots = 3;
inline constexpr std::int64_t kStreamNumel = 16 << 20;

// Throws as Settings::ResolveBatchSizes, and OutOfMemoryError when the plan needs more than
// ullage.device_memory, with what it needs at least.
Plan MakePlan(const Settings& settings, std::vector<layout::ParameterSpec> parameters,
              const Target& target);

}  // namespace ullage::plan
