#include "planner/prediction.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "memory/caching_allocator.h"

namespace ullage::planner {
namespace {

using memory::Phase;
using memory::Trace;

constexpr std::size_t kMostTold = 20;

std::string NameOf(const std::vector<std::string>& names, std::int32_t index) {
  return index < 0 || static_cast<std::size_t>(index) >= names.size()
             ? std::string()
             : names[static_cast<std::size_t>(index)];
}

PhaseBytes OfPeak(const Trace& trace, const Trace::Peak& peak, const Names& names) {
  PhaseBytes phase;
  phase.phase = memory::kPhaseNames[static_cast<std::size_t>(peak.phase)];
  phase.total = peak.total;
  for (std::size_t tag = 0; tag < peak.engine.size(); ++tag) {
    if (peak.engine[tag] != 0) phase.by_tag.emplace_back(plan::kTagNames[tag], peak.engine[tag]);
  }
  for (std::size_t use = 0; use < peak.operators.size(); ++use) {
    if (peak.operators[use] == 0) continue;
    phase.by_tag.emplace_back(memory::kUseNames[use], peak.operators[use]);
  }
  const Trace::Event& event = trace.events()[static_cast<std::size_t>(peak.event)];
  if (event.storage >= 0) {
    phase.operation = NameOf(names.operations, event.site.operation);
    phase.parameter = NameOf(names.parameters, event.site.parameter);
  }
  return phase;
}

// Layers alike count together: "layers.3.mlp" is one of "layers.*.mlp".
std::string WithoutNumbers(const std::string& name) {
  std::string result;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (begin > 0) result += '.';
    result += is_number ? "*" : part;
    begin = end + 1;
  }
  return result;
}

std::vector<HeldTensors> Largest(const Trace& trace, const Trace::Peak& peak, const Names& names) {
  std::map<std::tuple<memory::Use, std::int32_t, std::string>, HeldTensors> groups;
  for (const std::int32_t index : peak.storages) {
    const Trace::Storage& storage = trace.storages()[static_cast<std::size_t>(index)];
    const torchx::Site site = trace.events()[static_cast<std::size_t>(storage.born)].site;
    HeldTensors& group = groups[{storage.use(), site.operation,
                                 WithoutNumbers(NameOf(names.parameters, site.parameter))}];
    group.bytes += storage.bytes;
    ++group.count;
  }
  std::vector<HeldTensors> largest;
  for (auto& [key, group] : groups) {
    const auto& [use, operation, parameter] = key;
    group.use = memory::kUseNames[static_cast<std::size_t>(use)];
    group.operation = NameOf(names.operations, operation);
    group.parameter = parameter;
    largest.push_back(std::move(group));
  }
  std::ranges::stable_sort(largest, std::ranges::greater(), &HeldTensors::bytes);
  if (largest.size() > kMostTold) largest.resize(kMostTold);
  return largest;
}

// What libraries keep of torch's allocator from the first matrix product on.
class Workspaces {
 public:
  Workspaces(const Names& names, const DeviceModel& device, memory::CachingAllocator& allocator)
      : names_(names), device_(device), allocator_(allocator) {}

  // After the request of `event`.
  void See(const Trace::Event& event) {
    const std::string name = NameOf(names_.operations, event.site.operation);
    if (std::ranges::find(kProducts, name) == kProducts.end()) return;
    Thread& thread = event.phase == Phase::kBackward ? autograds_ : callers_;
    Take(thread.has_any, device_.workspace);
    if (name == "aten::addmm") Take(thread.has_bias, device_.bias_workspace);
  }

 private:
  static constexpr std::array<std::string_view, 4> kProducts = {"aten::mm", "aten::addmm",
                                                                "aten::bmm", "aten::baddbmm"};

  struct Thread {
    bool has_any = false, has_bias = false;
  };

  void Take(bool& has, std::int64_t bytes) {
    if (!std::exchange(has, true) && bytes > 0) allocator_.Allocate(bytes);
  }

  const Names& names_;
  const DeviceModel& device_;
  memory::CachingAllocator& allocator_;
  Thread callers_, autograds_;
};

}  // namespace

MemoryPrediction Summarise(const Trace& trace, const Names& names) {
  MemoryPrediction prediction;
  const std::vector<Trace::Peak> peaks = trace.Peaks();
  const auto highest = std::ranges::max_element(peaks, {}, &Trace::Peak::total);
  if (highest == peaks.end()) return prediction;
  prediction.peak = highest->total;
  for (const Trace::Peak& peak : peaks) {
    if (peak.phase == Phase::kIdle) continue;  // no more than the phases before and after
    prediction.phases.push_back(OfPeak(trace, peak, names));
  }
  prediction.largest = Largest(trace, *highest, names);
  prediction.allocated = prediction.reserved = prediction.peak;
  return prediction;
}

void ReplayOnCuda(const Trace& trace, const Names& names, const DeviceModel& device,
                  MemoryPrediction& prediction) {
  using memory::CachingAllocator;
  CachingAllocator allocator(  // torchx::PreferGrowingSegments
      {.growing_segments = true, .large_segment = std::int64_t{12} << 20});

  std::int64_t planned = 0;
  for (const Trace::Event& event : trace.events()) {
    if (event.storage < 0 && event.phase == Phase::kLoad) planned += event.bytes;
  }
  if (planned > 0) allocator.Allocate(planned);
  const std::int64_t before = allocator.reserved();

  std::map<std::int32_t, CachingAllocator::Id> of_storage;
  std::multimap<std::pair<memory::Tag, std::int64_t>, CachingAllocator::Id> of_engine;
  Workspaces workspaces(names, device, allocator);
  for (const Trace::Event& event : trace.events()) {
    if (event.bytes == 0) continue;
    if (event.storage >= 0) {
      if (event.bytes > 0) {
        of_storage[event.storage] = allocator.Allocate(event.bytes);
        workspaces.See(event);
      } else {
        allocator.Free(of_storage.at(event.storage));
      }
    } else if (event.phase != Phase::kLoad) {
      if (event.bytes > 0) {
        of_engine.emplace(std::pair(event.tag, event.bytes), allocator.Allocate(event.bytes));
      } else if (const auto held = of_engine.find({event.tag, -event.bytes});
                 held != of_engine.end()) {
        allocator.Free(held->second);
        of_engine.erase(held);
      }
    }
  }
  prediction.allocated = allocator.allocated_peak();
  prediction.reserved = allocator.reserved_peak();
  prediction.operators = prediction.reserved - before;
}

}  // namespace ullage::planner
