#include "plan/window_plan.h"

namespace ullage::plan {

WindowPlan MakeWindowPlan(const Plan& plan) {
  constexpr std::int64_t kLine = 64;
  WindowPlan window;
  window.units = static_cast<int>(plan.units.size());
  const auto place = [&window](std::int64_t bytes) {
    const std::int64_t offset = window.total;
    window.total += layout::RoundUp(bytes, kLine);
    return offset;
  };
  for (const UnitPlan& unit : plan.units) {
    const BufferBytes bytes =
        unit.resident ? ResidentBytes(unit, plan.world_size) : HomeBytes(unit, 0, plan.world_size);
    window.weights.push_back(plan.world_size > 1 ? place(bytes.total()) : -1);
  }
  for (const UnitPlan& unit : plan.units) {
    const bool peers_read = unit.state == StateShare::kWhole && plan.world_size > 1;
    window.sums.push_back(peers_read ? place(GradientBytes(unit, 0, DType::kFloat32).total()) : -1);
  }
  for (const UnitPlan& unit : plan.units) {
    const std::int64_t bytes = StagingBytes(unit.unit, plan.world_size);
    window.own_staging.push_back(unit.own_staging ? place(bytes) : -1);
  }
  window.staging_ring = place(plan.staging_ring_bytes);
  window.descriptors = place(plan.descriptor_bytes);
  return window;
}

}  // namespace ullage::plan
