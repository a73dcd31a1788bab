#include "plan/disk_layout.h"

#include <algorithm>

namespace ullage::plan {

void SizeDiskSlots(Plan& plan) {
  plan.disk_part_numel = 0;
  plan.disk_slot_bytes = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (!plan.units[u].state_on_disk) continue;
    plan.disk_part_numel =
        std::max(plan.disk_part_numel, std::min(kDiskNumel, plan.HeldNumel(static_cast<int>(u))));
  }
  if (plan.disk_part_numel == 0) return;
  // The slots begin at a multiple of the grain, wherever their memory does.
  plan.disk_slot_bytes =
      static_cast<std::int64_t>(kDiskSlots) * MakeDiskLayout(plan).largest_bytes + kDiskGrain;
}

DiskLayout MakeDiskLayout(const Plan& plan) {
  DiskLayout layout;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    layout.first.push_back(layout.parts.size());
    const UnitPlan& unit = plan.units[u];
    if (!unit.state_on_disk) continue;
    const std::int64_t element_bytes = 4 * plan.moments + MasterExtensionBytes(unit.unit.dtype);
    const std::int64_t numel = plan.HeldNumel(static_cast<int>(u));
    for (std::int64_t begin = 0; begin < numel; begin += plan.disk_part_numel) {
      DiskPart part;
      part.unit = static_cast<int>(u);
      part.begin = begin;
      part.end = std::min(begin + plan.disk_part_numel, numel);
      part.offset = layout.bytes;
      const std::int64_t used = element_bytes * (part.end - begin);
      part.bytes = layout::RoundUp(used, kDiskGrain);
      layout.bytes += part.bytes;
      layout.padding += part.bytes - used;
      layout.largest_bytes = std::max(layout.largest_bytes, part.bytes);
      layout.parts.push_back(part);
    }
  }
  return layout;
}

}  // namespace ullage::plan
