#include "plan/plan.h"

#include <algorithm>
#include <utility>

#include "plan/disk_layout.h"
#include "plan/making.h"
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

// torch gives device memory out in multiples of this many bytes.
constexpr std::int64_t kDeviceGrain = 512;

bool WasGiven(const Settings& settings, std::string_view key) {
  return std::ranges::find(settings.given, key) != settings.given.end();
}

// Two units are gathered at a time: unless the user says otherwise, sixteen of them at least keep
// that a small part of a model.
std::int64_t UnitBytes(const Settings& settings,
                       const std::vector<layout::ParameterSpec>& parameters) {
  const std::int64_t unit_bytes = settings.ullage.unit_size;
  if (unit_bytes != UllageSettings{}.unit_size || WasGiven(settings, "ullage.unit_size")) {
    return unit_bytes;
  }
  std::int64_t weight_bytes = 0;
  for (const layout::ParameterSpec& spec : parameters) {
    weight_bytes += spec.numel * ElementBytes(spec.dtype);
  }
  constexpr std::int64_t kSmallestUnit = 1 << 20;
  return std::min(unit_bytes, std::max(kSmallestUnit, weight_bytes / 16));
}

}  // namespace

// Weights that a rank holds where they are updated.
BufferBytes HomeBytes(const UnitPlan& plan, int rank, int world_size) {
  const std::int64_t element_bytes = ElementBytes(plan.unit.dtype);
  if (plan.unit.sliced || plan.state == StateShare::kSlice) {
    return Of(layout::OwnedNumel(plan.unit, rank), plan.unit.slice_numel, element_bytes);
  }
  return Of(plan.unit.numel, plan.unit.padded_numel(world_size), element_bytes);
}

BufferBytes ResidentBytes(const UnitPlan& plan, int world_size) {
  if (!plan.resident) return {};
  return Of(plan.unit.numel, plan.unit.padded_numel(world_size), ElementBytes(plan.unit.dtype));
}

BufferBytes MasterBytes(const UnitPlan& plan, int rank, int world_size) {
  return StateBytes(plan, rank, world_size, MasterExtensionBytes(plan.unit.dtype));
}

BufferBytes MomentBytes(const UnitPlan& plan, int rank, int world_size, int moments) {
  return StateBytes(plan, rank, world_size, 4 * moments);
}

BufferBytes GradientBytes(const UnitPlan& plan, int rank, DType sums_dtype) {
  if (!plan.unit.trainable) return {};
  return Of(layout::OwnedNumel(plan.unit, rank), plan.unit.slice_numel, ElementBytes(sums_dtype));
}

std::int64_t StagingBytes(const layout::Unit& unit, int world_size) {
  return unit.trainable ? unit.padded_numel(world_size) * ElementBytes(unit.dtype) : 0;
}

BufferBytes NormBytes(const Plan& plan) {
  if (!plan.on_cuda) return {};
  const auto bytes =
      static_cast<std::int64_t>(plan.parameters.size() + plan.units.size()) * kNormResultBytes;
  return {bytes, layout::RoundUp(bytes, kDeviceGrain) - bytes};
}

std::vector<UnitPlan> MakeUnitPlans(const Settings& settings,
                                    const std::vector<layout::ParameterSpec>& parameters,
                                    const Target& target, bool offload_weights) {
  const bool slice_weights = settings.zero.stage == 3 && target.world_size > 1;
  // A small parameter is kept out of the units that come and go.
  const bool some_gathered = slice_weights || offload_weights;
  // With slices of its grain the plan says to the byte what the device's allocator gives.
  const std::int64_t slice_multiple = target.on_cuda ? kDeviceGrain / 2 : layout::kAlignment;
  std::vector<UnitPlan> units;
  for (layout::Unit& unit : layout::MakeUnits(parameters, UnitBytes(settings, parameters),
                                              some_gathered, target.world_size, slice_multiple)) {
    UnitPlan unit_plan;
    const bool is_gathered = unit.sliced;
    unit.sliced = is_gathered && slice_weights;
    unit_plan.resident = !is_gathered;
    if (is_gathered && offload_weights) unit_plan.home = Tier::kHost;
    if (unit.trainable) {
      unit_plan.state = settings.zero.stage == 0 ? StateShare::kWhole : StateShare::kSlice;
      unit_plan.own_staging = slice_weights && !unit.sliced;
    }
    unit_plan.unit = std::move(unit);
    units.push_back(std::move(unit_plan));
  }
  return units;
}

void PlaceState(const Settings& settings, Plan& plan) {
  const OffloadSettings& offload = settings.zero.offload_optimizer;
  if (offload.device == OffloadDevice::kNone) return;
  const bool to_disk = offload.device == OffloadDevice::kNvme;
  const auto is_moved = [to_disk](const UnitPlan& unit) {
    return to_disk ? unit.state_on_disk : unit.home == Tier::kHost;
  };
  double owed = 0;  // elements that should be moved and are not yet
  for (const UnitPlan& unit : plan.units) {
    if (!unit.unit.trainable) continue;
    owed += offload.ratio * static_cast<double>(unit.unit.numel);
    if (is_moved(unit)) owed -= static_cast<double>(unit.unit.numel);
  }
  for (std::size_t u = plan.units.size(); u-- > 0;) {
    UnitPlan& unit = plan.units[u];
    const auto numel = static_cast<double>(unit.unit.numel);
    if (!unit.unit.trainable || is_moved(unit) || owed < numel / 2) continue;
    unit.home = Tier::kHost;
    // Plain SGD on fp32 weights has no state.
    unit.state_on_disk = to_disk && 4 * plan.moments + MasterExtensionBytes(unit.unit.dtype) > 0;
    owed -= numel;
  }
}

void SizeBuffers(const Settings& settings, const Target& target, Plan& plan) {
  const int world_size = target.world_size;
  SizeDiskSlots(plan);
  std::int64_t largest_slice = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.unit.trainable) largest_slice = std::max(largest_slice, unit.unit.slice_numel);
  }
  plan.bucket_numel = std::clamp<std::int64_t>(settings.zero.reduce_bucket_size / world_size, 1,
                                               std::max<std::int64_t>(largest_slice, 1));
  const auto gathered_bytes = [&](const UnitPlan& unit) {
    return unit.resident ? 0 : unit.unit.padded_numel(world_size) * ElementBytes(unit.unit.dtype);
  };
  plan.ring_bytes = TwoLargest(plan.units, gathered_bytes);
  plan.prefetch_bytes = 0;
  if (target.on_cuda || WasGiven(settings, "zero_optimization.stage3_prefetch_bucket_size")) {
    std::int64_t all = 0;
    for (const UnitPlan& unit : plan.units) all += gathered_bytes(unit);
    plan.prefetch_bytes =
        std::min(layout::RoundUp(settings.zero.prefetch_bucket_size, layout::kAlignment) *
                     ElementBytes(plan.weight_dtype),
                 all - plan.ring_bytes);
    plan.ring_bytes += plan.prefetch_bytes;
  }
  plan.landing_bytes = 0;
  const bool are_sums_fp32 = !plan.sums_in_weight_dtype || plan.weight_dtype == DType::kFloat32;
  if (target.on_cuda && are_sums_fp32) {
    const auto landing = [&](const UnitPlan& unit) {
      return unit.home == Tier::kHost && unit.unit.trainable ? StagingBytes(unit.unit, world_size)
                                                             : 0;
    };
    std::int64_t all = 0;
    for (const UnitPlan& unit : plan.units) all += landing(unit);
    plan.landing_bytes =
        std::max(TwoLargest(plan.units, landing), std::min(all / 4, kLandingBytes));
  }
  plan.crossing_bytes = 0;
  if (world_size == 1) {
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      if (!plan.IsUpdatedBeside(static_cast<int>(u))) continue;
      plan.crossing_bytes += StagingBytes(plan.units[u].unit, world_size);
    }
    const std::int64_t of_a_layer = layout::RoundUp(plan.crossing_bytes / 24, kDeviceGrain);
    plan.crossing_bytes = std::min(plan.crossing_bytes,
                                   std::clamp(of_a_layer, kLeastCrossingBytes, kMostCrossingBytes));
  }
  plan.stream_bytes = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlan& unit = plan.units[u];
    if (!plan.IsUpdatedBeside(static_cast<int>(u)) || unit.state_on_disk) continue;
    const std::int64_t element_bytes = (unit.resident ? 0 : ElementBytes(unit.unit.dtype)) +
                                       MasterExtensionBytes(unit.unit.dtype) + 4 * plan.moments +
                                       4;  // a gradient's at most
    const std::int64_t bytes =
        element_bytes * std::min(kStreamNumel, plan.HeldNumel(static_cast<int>(u)));
    plan.stream_bytes =
        std::max(plan.stream_bytes, static_cast<std::int64_t>(kStreamSlots) * bytes);
  }
  if (world_size == 1) return;
  plan.staging_ring_bytes = TwoLargest(plan.units, [&](const UnitPlan& unit) {
    return unit.own_staging ? 0 : StagingBytes(unit.unit, world_size);
  });
  plan.own_staging_bytes = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.own_staging) plan.own_staging_bytes += StagingBytes(unit.unit, world_size);
  }
  plan.descriptor_bytes = static_cast<std::int64_t>(plan.units.size() * sizeof(Descriptor));
  constexpr std::int64_t kTileBytes = 1 << 20;
  if (settings.zero.stage == 0) plan.sums_tile_bytes = std::min(kTileBytes, 4 * largest_slice);
  if (!target.all_local) {
    plan.exchange_scratch_bytes =
        2 * world_size * plan.bucket_numel * ElementBytes(plan.weight_dtype);
  }
}

Plan MakePlan(const Settings& settings, std::vector<layout::ParameterSpec> parameters,
              const Target& target) {
  const int world_size = target.world_size;
  Plan plan;
  plan.world_size = world_size;
  plan.stage = settings.zero.stage;
  plan.on_cuda = target.on_cuda;
  plan.moments = settings.optimizer.type == OptimizerType::kAdam ? 2
                 : settings.optimizer.momentum != 0              ? 1
                                                                 : 0;
  plan.weight_dtype = settings.precision == Precision::kFloat32    ? DType::kFloat32
                      : settings.precision == Precision::kBFloat16 ? DType::kBFloat16
                                                                   : DType::kFloat16;
  plan.sums_in_weight_dtype =
      world_size == 1 && settings.ResolveBatchSizes(world_size).accumulation_steps == 1;
  plan.parameters = std::move(parameters);
  for (layout::ParameterSpec& spec : plan.parameters) {
    spec.stays_whole |= spec.numel < settings.zero.param_persistence_threshold;
  }
  plan.units = MakeUnitPlans(settings, plan.parameters, target,
                             settings.zero.offload_param.device != OffloadDevice::kNone);
  PlaceState(settings, plan);
  SizeBuffers(settings, target, plan);
  plan.save_buffer_bytes = std::min(target.save_buffer_bytes / 4 * 4, plan.SavedBytes());
  if (settings.ullage.device_memory) FitToBudget(settings, target, plan);
  return plan;
}

std::int64_t Plan::SavedBytes() const {
  std::int64_t bytes = 0;
  for (const UnitPlan& plan : units) {
    bytes += 4 * plan.unit.slice_numel * (plan.unit.trainable ? 1 + moments : 1);
  }
  return bytes;
}

std::int64_t Plan::UpdateBytes(int unit) const {
  const DType dtype = units[static_cast<std::size_t>(unit)].unit.dtype;
  const std::int64_t state = ElementBytes(dtype) + MasterExtensionBytes(dtype) + 4 * moments;
  return HeldNumel(unit) * (2 * state + ElementBytes(sums_dtype(unit)));
}

std::int64_t Plan::HeldNumel(int index) const {
  const UnitPlan& plan = units[static_cast<std::size_t>(index)];
  return plan.unit.sliced || plan.state == StateShare::kSlice ? plan.unit.slice_numel
                                                              : plan.unit.padded_numel(world_size);
}

TagBytes Plan::BytesOfRank(int rank) const {
  TagBytes bytes{};
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    const TagBytes on_tier = BytesOfRank(rank, tier);
    for (std::size_t tag = 0; tag < bytes.size(); ++tag) bytes[tag] += on_tier[tag];
  }
  return bytes;
}

TagBytes Plan::BytesOfRank(int rank, Tier tier) const {
  TagBytes bytes = BytesOfBuffers(tier);
  for (std::size_t u = 0; u < units.size(); ++u) {
    const TagBytes of_unit = BytesOfUnit(static_cast<int>(u), rank, tier);
    for (std::size_t tag = 0; tag < bytes.size(); ++tag) bytes[tag] += of_unit[tag];
  }
  return bytes;
}

TagBytes Plan::BytesOfUnit(int index, int rank, Tier tier) const {
  TagBytes bytes{};
  const auto add = [&](Tag tag, Tier where, const BufferBytes& buffer) {
    if (where != tier) return;
    bytes[static_cast<std::size_t>(tag)] += buffer.used;
    bytes[static_cast<std::size_t>(Tag::kPadding)] += buffer.padding;
  };
  const UnitPlan& unit = units[static_cast<std::size_t>(index)];
  add(Tag::kWeights, Tier::kDevice, ResidentBytes(unit, world_size));
  if (!unit.resident || unit.home != Tier::kDevice) {
    add(Tag::kWeights, unit.home, HomeBytes(unit, rank, world_size));
  }
  add(Tag::kMaster, unit.state_tier(), MasterBytes(unit, rank, world_size));
  add(Tag::kMoments, unit.state_tier(), MomentBytes(unit, rank, world_size, moments));
  add(Tag::kGradients, unit.home, GradientBytes(unit, rank, sums_dtype(index)));
  return bytes;
}

TagBytes Plan::BytesOfBuffers(Tier tier) const {
  TagBytes bytes{};
  const auto add = [&](Tag tag, Tier where, const BufferBytes& buffer) {
    if (where != tier) return;
    bytes[static_cast<std::size_t>(tag)] += buffer.used;
    bytes[static_cast<std::size_t>(Tag::kPadding)] += buffer.padding;
  };
  add(Tag::kSlots, Tier::kDevice, {ring_bytes, 0});
  add(Tag::kSaves, Tier::kHost, {save_buffer_bytes, 0});
  add(Tag::kBuckets, Tier::kHost, {landing_bytes + disk_slot_bytes, 0});
  add(Tag::kBuckets, Tier::kDisk, {0, MakeDiskLayout(*this).padding});
  add(Tag::kBuckets, Tier::kDevice, {stream_bytes + crossing_bytes, 0});
  for (const Tier each : {Tier::kDevice, Tier::kHost}) add(Tag::kBuckets, each, NormBytes(*this));
  add(Tag::kBuckets, Tier::kDevice,
      {staging_ring_bytes + own_staging_bytes + descriptor_bytes + sums_tile_bytes +
           exchange_scratch_bytes,
       0});
  return bytes;
}

}  // namespace ullage::plan
