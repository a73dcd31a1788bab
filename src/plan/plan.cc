#include "plan/plan.h"

#include <algorithm>
#include <utility>

#include "plan/window_plan.h"

namespace ullage::plan {
namespace {

// Bytes for the largest unit and the one after it: a unit can be filled while the one before is
// still in use.
template <typename Bytes>
std::int64_t TwoLargest(const std::vector<UnitPlan>& units, const Bytes& bytes_of) {
  std::int64_t first = 0, second = 0;
  for (const UnitPlan& unit : units) {
    const std::int64_t bytes = bytes_of(unit);
    if (bytes > first) {
      second = std::exchange(first, bytes);
    } else {
      second = std::max(second, bytes);
    }
  }
  return first + second;
}

BufferBytes Of(std::int64_t used_numel, std::int64_t total_numel, std::int64_t element_bytes) {
  return {used_numel * element_bytes, (total_numel - used_numel) * element_bytes};
}

BufferBytes StateBytes(const UnitPlan& plan, int rank, int world_size, std::int64_t element_bytes) {
  switch (plan.state) {
    case StateShare::kNone:
      return {};
    case StateShare::kSlice:
      return Of(layout::OwnedNumel(plan.unit, rank), plan.unit.slice_numel, element_bytes);
    case StateShare::kWhole:
      return Of(plan.unit.numel, plan.unit.padded_numel(world_size), element_bytes);
  }
  return {};
}

}  // namespace

BufferBytes WeightBytes(const UnitPlan& plan, int rank, int world_size) {
  const std::int64_t element_bytes = ElementBytes(plan.unit.dtype);
  if (plan.unit.sliced) {
    return Of(layout::OwnedNumel(plan.unit, rank), plan.unit.slice_numel, element_bytes);
  }
  return Of(plan.unit.numel, plan.unit.padded_numel(world_size), element_bytes);
}

BufferBytes MasterBytes(const UnitPlan& plan, int rank, int world_size) {
  return plan.has_master ? StateBytes(plan, rank, world_size, 4) : BufferBytes{};
}

BufferBytes MomentBytes(const UnitPlan& plan, int rank, int world_size, int moments) {
  return StateBytes(plan, rank, world_size, 4 * moments);
}

BufferBytes GradientBytes(const UnitPlan& plan, int rank) {
  if (!plan.unit.trainable) return {};
  return Of(layout::OwnedNumel(plan.unit, rank), plan.unit.slice_numel, 4);
}

std::int64_t StagingBytes(const layout::Unit& unit, int world_size) {
  return unit.trainable ? unit.padded_numel(world_size) * ElementBytes(unit.dtype) : 0;
}

Plan MakePlan(const Settings& settings, std::vector<layout::ParameterSpec> parameters,
              int world_size, bool all_local) {
  Plan plan;
  plan.world_size = world_size;
  plan.stage = settings.zero.stage;
  plan.moments = settings.optimizer.type == OptimizerType::kAdam ? 2
                 : settings.optimizer.momentum != 0              ? 1
                                                                 : 0;
  plan.weight_dtype = settings.precision == Precision::kFloat32    ? DType::kFloat32
                      : settings.precision == Precision::kBFloat16 ? DType::kBFloat16
                                                                   : DType::kFloat16;
  plan.parameters = std::move(parameters);
  for (layout::ParameterSpec& spec : plan.parameters) {
    spec.stays_whole |= spec.numel < settings.zero.param_persistence_threshold;
  }
  // Two units are gathered at a time: unless the user says otherwise, sixteen of them at least keep
  // that a small part of a model.
  std::int64_t unit_bytes = settings.ullage.unit_size;
  if (unit_bytes == UllageSettings{}.unit_size &&
      std::ranges::find(settings.given, "ullage.unit_size") == settings.given.end()) {
    std::int64_t weight_bytes = 0;
    for (const layout::ParameterSpec& spec : plan.parameters) {
      weight_bytes += spec.numel * ElementBytes(spec.dtype);
    }
    constexpr std::int64_t kSmallestUnit = 1 << 20;
    unit_bytes = std::min(unit_bytes, std::max(kSmallestUnit, weight_bytes / 16));
  }
  const bool slice_weights = settings.zero.stage == 3 && world_size > 1;
  for (layout::Unit& unit :
       layout::MakeUnits(plan.parameters, unit_bytes, slice_weights, world_size)) {
    UnitPlan unit_plan;
    if (unit.trainable) {
      unit_plan.state = settings.zero.stage == 0 ? StateShare::kWhole : StateShare::kSlice;
      unit_plan.has_master = unit.dtype != DType::kFloat32;
      unit_plan.own_staging = slice_weights && !unit.sliced;
    }
    unit_plan.unit = std::move(unit);
    plan.units.push_back(std::move(unit_plan));
  }

  std::int64_t largest_slice = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.unit.trainable) largest_slice = std::max(largest_slice, unit.unit.slice_numel);
  }
  plan.bucket_numel = std::clamp<std::int64_t>(settings.zero.reduce_bucket_size / world_size, 1,
                                               std::max<std::int64_t>(largest_slice, 1));
  if (world_size > 1) {
    plan.ring_bytes = TwoLargest(plan.units, [&](const UnitPlan& unit) {
      return unit.unit.sliced ? unit.unit.padded_numel(world_size) * ElementBytes(unit.unit.dtype)
                              : 0;
    });
    plan.staging_ring_bytes = TwoLargest(plan.units, [&](const UnitPlan& unit) {
      return unit.own_staging ? 0 : StagingBytes(unit.unit, world_size);
    });
    for (const UnitPlan& unit : plan.units) {
      if (unit.own_staging) plan.own_staging_bytes += StagingBytes(unit.unit, world_size);
    }
    plan.descriptor_bytes = static_cast<std::int64_t>(plan.units.size() * sizeof(Descriptor));
    constexpr std::int64_t kTileBytes = 1 << 20;
    if (settings.zero.stage == 0) plan.sums_tile_bytes = std::min(kTileBytes, 4 * largest_slice);
    if (!all_local) {
      plan.exchange_scratch_bytes =
          2 * world_size * plan.bucket_numel * ElementBytes(plan.weight_dtype);
    }
  }
  return plan;
}

TagBytes Plan::BytesOfRank(int rank) const {
  TagBytes bytes{};
  const auto add = [&bytes](Tag tag, const BufferBytes& buffer) {
    bytes[static_cast<std::size_t>(tag)] += buffer.used;
    bytes[static_cast<std::size_t>(Tag::kPadding)] += buffer.padding;
  };
  for (const UnitPlan& unit : units) {
    add(Tag::kWeights, WeightBytes(unit, rank, world_size));
    add(Tag::kMaster, MasterBytes(unit, rank, world_size));
    add(Tag::kMoments, MomentBytes(unit, rank, world_size, moments));
    add(Tag::kGradients, GradientBytes(unit, rank));
  }
  add(Tag::kSlots, {ring_bytes, 0});
  add(Tag::kBuckets, {staging_ring_bytes + own_staging_bytes + descriptor_bytes + sums_tile_bytes +
                          exchange_scratch_bytes,
                      0});
  return bytes;
}

}  // namespace ullage::plan
