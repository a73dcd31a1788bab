#include "plan/window_plan.h"

#include <numeric>

namespace ullage::plan {

WindowPlan MakeWindowPlan(const Plan& plan) {
  WindowPlan window;
  window.units = static_cast<int>(plan.units.size());
  const auto place = [&](std::int64_t bytes, Tier tier) {
    const bool on_device = plan.on_cuda && tier == Tier::kDevice;
    // Lines of the cache; on a device, what kernels and copies like best.
    const std::int64_t grain = on_device ? 512 : 64;
    std::int64_t& total = on_device ? window.device_bytes : window.host_bytes;
    const std::int64_t offset = total;
    total += layout::RoundUp(bytes, grain);
    return SharedPlace{on_device, offset};
  };
  for (const UnitPlan& unit : plan.units) {
    const BufferBytes bytes =
        unit.resident ? ResidentBytes(unit, plan.world_size) : HomeBytes(unit, 0, plan.world_size);
    const Tier tier = unit.resident ? Tier::kDevice : unit.home;
    window.weights.push_back(plan.world_size > 1 ? place(bytes.total(), tier) : SharedPlace{});
  }
  for (const UnitPlan& unit : plan.units) {
    const bool peers_read = unit.state == StateShare::kWhole && plan.world_size > 1;
    window.sums.push_back(peers_read
                              ? place(GradientBytes(unit, 0, DType::kFloat32).total(), unit.home)
                              : SharedPlace{});
  }
  for (const UnitPlan& unit : plan.units) {
    const std::int64_t bytes = StagingBytes(unit.unit, plan.world_size);
    window.own_staging.push_back(unit.own_staging ? place(bytes, Tier::kDevice) : SharedPlace{});
  }
  window.staging_ring = place(plan.staging_ring_bytes, Tier::kDevice);
  window.descriptors = place(plan.descriptor_bytes, Tier::kHost).offset;
  return window;
}

std::int64_t BytesBesideWindow(const Plan& plan, const WindowPlan& window, int rank, Tier tier) {
  const TagBytes planned = plan.BytesOfRank(rank, tier);
  std::int64_t bytes = std::accumulate(planned.begin(), planned.end(), std::int64_t{0});
  const auto take = [&](Tier where, std::int64_t shared) {
    if (where == tier) bytes -= shared;
  };
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlan& unit = plan.units[u];
    if (window.weights[u].exists()) {
      take(unit.resident ? Tier::kDevice : unit.home,
           (unit.resident ? ResidentBytes(unit, plan.world_size)
                          : HomeBytes(unit, rank, plan.world_size))
               .total());
    }
    if (window.sums[u].exists()) {
      take(unit.home, GradientBytes(unit, rank, DType::kFloat32).total());
    }
  }
  take(Tier::kHost, plan.save_buffer_bytes);  // in no arena: it comes with the first save
  // The plan counts the descriptors where the gradients are that they tell of.
  take(Tier::kDevice, plan.staging_ring_bytes + plan.own_staging_bytes + plan.descriptor_bytes);
  return bytes;
}

}  // namespace ullage::plan
