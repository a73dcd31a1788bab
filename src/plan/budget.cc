// Fitting a plan into the memory that the device has for this process.
//
// Everything counts: what the engine holds, what operators hold at their peak, and what lies on the
// device outside torch's allocator. State goes to the host first, unit by unit from the end of the
// model (PlaceState says why); when that is not enough, the weights go too.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/bytes.h"
#include "plan/making.h"
#include "ullage/error.h"

namespace ullage::plan {
namespace {

std::int64_t Sum(const TagBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

// Whether the settings say themselves what lies where.
bool IsPlacementGiven(const Settings& settings) {
  const auto was_given = [&](std::string_view key) {
    return std::ranges::find(settings.given, key) != settings.given.end();
  };
  return settings.zero.offload_optimizer.device != OffloadDevice::kNone ||
         settings.zero.offload_param.device != OffloadDevice::kNone ||
         was_given("zero_optimization.offload_optimizer.device") ||
         was_given("zero_optimization.offload_param.device");
}

class Fitting {
 public:
  Fitting(const Settings& settings, const Target& target, Plan& plan)
      : settings_(settings), target_(target), plan_(plan) {
    plan_.device_budget = *settings.ullage.device_memory;
    plan_.operator_bytes = target.operator_bytes;
    plan_.outside_bytes = target.outside_bytes;
    plan_.is_placed_by_budget = !IsPlacementGiven(settings);
    TakeUnits();
  }

  void Run() {
    if (Fits()) return;
    if (plan_.is_placed_by_budget) {
      if (MoveState()) return;
      if (WeightsMayMove() && MoveWeights()) return;
    }
    Refuse();
  }

 private:
  // All ranks hold the same bytes; what differs is how much of them is padding.
  std::int64_t DeviceBytes(int unit) const {
    return Sum(plan_.BytesOfUnit(unit, 0, Tier::kDevice));
  }

  void TakeUnits() {
    unit_bytes_ = 0;
    some_gathered_ = false;
    for (std::size_t u = 0; u < plan_.units.size(); ++u) {
      unit_bytes_ += DeviceBytes(static_cast<int>(u));
      some_gathered_ |= !plan_.units[u].resident;
    }
  }

  bool Fits() {
    SizeBuffers(settings_, target_, plan_);
    const std::int64_t needed = unit_bytes_ + Sum(plan_.BytesOfBuffers(Tier::kDevice)) +
                                plan_.operator_bytes + plan_.outside_bytes;
    if (needed < least_needed_) {
      least_needed_ = needed;
      least_ = plan_.BytesOfRank(0, Tier::kDevice);
    }
    return needed <= plan_.device_budget;
  }

  void Move(std::size_t u, bool weights) {
    unit_bytes_ -= DeviceBytes(static_cast<int>(u));
    plan_.units[u].home = Tier::kHost;
    if (weights) plan_.units[u].resident = false;
    unit_bytes_ += DeviceBytes(static_cast<int>(u));
  }

  // One unit after the other, since it is no law that the next prefix needs less: the first one
  // brings the buffers through which state is streamed. Units that stay on the device while others
  // come and go hold small parameters; they are the last.
  bool MoveState() {
    for (const bool small : {false, true}) {
      for (std::size_t u = plan_.units.size(); u-- > 0;) {
        const UnitPlan& unit = plan_.units[u];
        const bool is_small = some_gathered_ && unit.resident;
        if (!unit.unit.trainable || unit.home == Tier::kHost || is_small != small) continue;
        Move(u, /*weights=*/false);
        if (Fits()) return true;
      }
    }
    return false;
  }

  // At stage 3 on several ranks a unit's weights are at home where its state is: they have moved.
  // Below it every rank holds all weights on its device.
  bool WeightsMayMove() const { return target_.world_size == 1; }

  bool MoveWeights() {
    plan_.units = MakeUnitPlans(settings_, plan_.parameters, target_, /*offload_weights=*/true);
    std::vector<std::size_t> movable;
    for (std::size_t u = 0; u < plan_.units.size(); ++u) {
      UnitPlan& unit = plan_.units[u];
      if (unit.resident) continue;
      movable.push_back(u);
      unit.resident = true;
      unit.home = unit.unit.trainable ? Tier::kHost : Tier::kDevice;
    }
    TakeUnits();
    // Spread over the model, however many they are: copies then have the time of all layers, and
    // not only of the last ones. Multiples of the golden ratio do that.
    const auto place = [](std::size_t i) {
      const double multiple = static_cast<double>(i + 1) * std::numbers::phi;
      return multiple - std::floor(multiple);
    };
    std::vector<std::size_t> order(movable.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, place);
    for (const std::size_t i : order) {
      Move(movable[i], /*weights=*/true);
      if (Fits()) return true;
    }
    some_gathered_ = !movable.empty();
    return MoveState();
  }

  [[noreturn]] void Refuse() const {
    std::string parts;
    for (std::size_t tag = 0; tag < kTagCount; ++tag) {
      if (least_[tag] > 0)
        parts += fmt::format("{} {}, ", kTagNames[tag], FormatBytes(least_[tag]));
    }
    throw OutOfMemoryError(
        fmt::format(
            "ullage.device_memory: {} do not suffice; {} {} needed ({} B more): {}operators "
            "{}, outside torch's allocator {}",
            FormatBytes(plan_.device_budget), FormatBytes(least_needed_),
            plan_.is_placed_by_budget ? "are at least" : "are", least_needed_ - plan_.device_budget,
            parts, FormatBytes(plan_.operator_bytes), FormatBytes(plan_.outside_bytes)),
        Remedy());
  }

  std::string Remedy() const {
    std::string remedy;
    if (!plan_.is_placed_by_budget) {
      remedy +=
          "leave the offload sections out, so that the budget decides what lies on the host; ";
    } else if (plan_.world_size > 1 && plan_.stage < 3) {
      remedy += "zero_optimization.stage 3 divides the weights over the ranks; ";
    }
    if (plan_.operator_bytes > least_needed_ / 4) {
      remedy +=
          "a smaller train_micro_batch_size_per_gpu, shorter records or ullage.recompute "
          "\"block\" lower what operators need; ";
    }
    const auto slots = static_cast<std::size_t>(Tag::kSlots);
    const auto buckets = static_cast<std::size_t>(Tag::kBuckets);
    if (least_[slots] + least_[buckets] > least_needed_ / 4) {
      remedy +=
          "a smaller ullage.unit_size or stage3_prefetch_bucket_size lowers slots and "
          "buckets; ";
    }
    return remedy + "or raise ullage.device_memory";
  }

  const Settings& settings_;
  const Target& target_;
  Plan& plan_;
  std::int64_t unit_bytes_ = 0;  // of all units, on the device
  bool some_gathered_ = false;
  std::int64_t least_needed_ = std::numeric_limits<std::int64_t>::max();
  TagBytes least_{};  // of the engine, in the plan that needs least
};

// Of what a rank holds: units in a row of text.
struct Share {
  std::int64_t units = 0;
  std::int64_t bytes = 0;
  void Add(std::int64_t more) {
    ++units;
    bytes += more;
  }
  std::string Text() const { return fmt::format("{} units ({})", units, FormatBytes(bytes)); }
};

}  // namespace

void FitToBudget(const Settings& settings, const Target& target, Plan& plan) {
  Fitting(settings, target, plan).Run();
}

std::vector<std::string> Plan::BudgetLines() const {
  if (device_budget == 0) return {};
  const std::int64_t engine = Sum(BytesOfRank(0, Tier::kDevice));
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "ullage.device_memory {}: planned are {}, of which {} for the engine, {} for operators, {} "
      "outside torch's allocator",
      FormatBytes(device_budget), FormatBytes(engine + operator_bytes + outside_bytes),
      FormatBytes(engine), FormatBytes(operator_bytes), FormatBytes(outside_bytes)));
  Share state_here, state_there, state_on_disk, weights_there;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const UnitPlan& unit = units[u];
    const int index = static_cast<int>(u);
    if (!unit.resident && unit.home == Tier::kHost) {
      weights_there.Add(HomeBytes(unit, 0, world_size).total());
    }
    if (!unit.unit.trainable) continue;
    Share& share = unit.state_on_disk         ? state_on_disk
                   : unit.home == Tier::kHost ? state_there
                                              : state_here;
    share.Add(MasterBytes(unit, 0, world_size).total() +
              MomentBytes(unit, 0, world_size, moments).total() +
              GradientBytes(unit, 0, sums_dtype(index)).total());
  }
  const char* const why =
      is_placed_by_budget ? "the device has no room for it" : "the settings ask for it";
  if (state_on_disk.units > 0) {
    lines.push_back(
        fmt::format("optimizer state and gradients: of {} the state on disk and the gradients on "
                    "the host, because the settings ask for it",
                    state_on_disk.Text()));
  }
  if (state_there.units == 0 && state_on_disk.units == 0) {
    lines.emplace_back("all weights and optimizer state fit on the device");
  } else if (state_there.units > 0) {
    lines.push_back(fmt::format(
        "optimizer state and gradients: of {} on the host, because {}; of {} on the device",
        state_there.Text(), why, state_here.Text()));
  }
  if (weights_there.units > 0) {
    lines.push_back(fmt::format(
        "weights: of {} at home on the host, because {}; they pass through {} on the device",
        weights_there.Text(), why, FormatBytes(ring_bytes)));
  }
  return lines;
}

}  // namespace ullage::plan
