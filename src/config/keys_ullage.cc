// The table of keys: what stands under "ullage", for which DeepSpeed has no word.
#include "config/key_table.h"

namespace ullage::config {
namespace {

using enum Standing;
using enum ValueKind;

constexpr KeyInfo kKeys[] = {
    {.path = "ullage"},
    {.path = "ullage.device_memory", .kind = kBytes, .min = 1, .nullable = true},
    {.path = "ullage.host_memory",
     .standing = kNotOfferedYet,
     .kind = kBytes,
     .min = 1,
     .nullable = true,
     .reason = "the host has no budget; ullage plan shows the bytes"},
    {.path = "ullage.disk", .nullable = true},
    {.path = "ullage.disk.path", .kind = kString, .nullable = true},
    {.path = "ullage.disk.limit", .kind = kBytes, .min = 1, .nullable = true},
    {.path = "ullage.unit_size", .kind = kBytes, .min = 1, .max = 0x1p40},
    {.path = "ullage.timeout_seconds", .kind = kInteger, .min = 1, .max = 30 * 86400},
    {.path = "ullage.reduce",
     .standing = kNotOfferedYet,
     .kind = kString,
     .words = "exact|at_boundary",
     .accepted = "\"exact\"",
     .reason = "gradients are exchanged at every micro-step, so that the result does not depend on "
               "how a batch is cut"},
    {.path = "ullage.cuda_graphs", .kind = kString, .words = "auto|on|off"},
    {.path = "ullage.recompute", .kind = kString, .words = "none|block"},
    {.path = "ullage.no_decay", .kind = kPatterns},
    {.path = "ullage.parameter_groups", .kind = kGroups},
    {.path = "ullage.parameter_groups[].pattern", .kind = kPattern},
    {.path = "ullage.parameter_groups[].lr_factor", .kind = kNumber, .min = 0},
    {.path = "ullage.parameter_groups[].lr", .kind = kNumber, .min = 0},
    {.path = "ullage.parameter_groups[].weight_decay", .kind = kNumber, .min = 0},
};

}  // namespace

std::span<const KeyInfo> UllageKeys() {
  return kKeys;
}

}  // namespace ullage::config
