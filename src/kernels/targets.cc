#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/targets.cc"
#include "hwy/foreach_target.h"

#include <fmt/format.h>

#include "hwy/highway.h"
#include "ullage/error.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {
int64_t CompiledTarget() {
  return HWY_TARGET;
}
}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(CompiledTarget);

namespace {

std::string NameOf(int64_t target) {
  if (target == HWY_SCALAR || target == HWY_EMU128) return "plain";
  return hwy::TargetName(target);
}

std::vector<int64_t> AllTargets() {
  const int64_t in_use = hwy::SupportedTargets();
  hwy::SetSupportedTargetsForTest(0);
  std::vector<int64_t> all = hwy::SupportedAndGeneratedTargets();
  hwy::SetSupportedTargetsForTest(in_use);
  return all;
}

}  // namespace

std::string TargetName() {
  return NameOf(HWY_DYNAMIC_DISPATCH(CompiledTarget)());
}

std::vector<std::string> SupportedTargets() {
  std::vector<std::string> names;
  for (int64_t target : AllTargets()) names.push_back(NameOf(target));
  return names;
}

void UseTarget(std::string_view name) {
  if (name.empty()) return hwy::SetSupportedTargetsForTest(0);
  for (int64_t target : AllTargets()) {
    if (NameOf(target) == name) return hwy::SetSupportedTargetsForTest(target);
  }
  std::string offered;
  for (const std::string& target : SupportedTargets()) offered += " " + target;
  throw UnsupportedError(fmt::format("instruction set '{}' cannot be used here", name),
                         "this CPU and build offer" + offered);
}

}  // namespace ullage::kernels
#endif
