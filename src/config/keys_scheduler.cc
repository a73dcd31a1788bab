// The table of keys: scheduler, with the parameters of each type.
#include "config/key_table.h"

namespace ullage::config {
namespace {

using enum Standing;
using enum ValueKind;

constexpr double kLargestStep = 0x1p53;

// Every schedule starts at the first step; where a run continues is in its checkpoint.
constexpr KeyInfo LastIteration(std::string_view scope) {
  return {.path = "scheduler.params.last_batch_iteration",
          .standing = kNotOffered,
          .kind = kInteger,
          .min = -1,
          .accepted = "-1",
          .reason = "a schedule starts at the first step",
          .scope = scope};
}

constexpr KeyInfo WarmupSteps(std::string_view scope) {
  return {.path = "scheduler.params.warmup_num_steps",
          .kind = kInteger,
          .min = 1,
          .max = kLargestStep,
          .auto_is = "the number of warm-up steps",
          .scope = scope};
}

constexpr KeyInfo WarmupType(std::string_view scope) {
  return {.path = "scheduler.params.warmup_type",
          .kind = kString,
          .words = "log|linear",
          .scope = scope};
}

constexpr KeyInfo TotalSteps(std::string_view scope) {
  return {.path = "scheduler.params.total_num_steps",
          .kind = kInteger,
          .min = 1,
          .max = kLargestStep,
          .auto_is = "the number of training steps",
          .scope = scope};
}

constexpr KeyInfo Rate(std::string_view path, std::string_view scope,
                       std::string_view auto_is = "") {
  return {.path = path, .kind = kNumberOrList, .min = 0, .auto_is = auto_is, .scope = scope};
}

constexpr KeyInfo Steps(std::string_view path, std::string_view scope, double min) {
  return {.path = path, .kind = kInteger, .min = min, .max = kLargestStep, .scope = scope};
}

// The largest rate may be null: the optimizer's own.
constexpr KeyInfo WarmupMaxLr(std::string_view scope) {
  return {.path = "scheduler.params.warmup_max_lr",
          .kind = kNumberOrList,
          .min = 0,
          .nullable = true,
          .auto_is = "learning_rate",
          .scope = scope};
}

constexpr KeyInfo kKeys[] = {
    {.path = "scheduler"},
    {.path = "scheduler.type", .kind = kString},
    {.path = "scheduler.params"},

    Rate("scheduler.params.warmup_min_lr", "WarmupLR", "0"),
    WarmupMaxLr("WarmupLR"),
    WarmupSteps("WarmupLR"),
    WarmupType("WarmupLR"),
    LastIteration("WarmupLR"),

    TotalSteps("WarmupDecayLR"),
    Rate("scheduler.params.warmup_min_lr", "WarmupDecayLR", "0"),
    WarmupMaxLr("WarmupDecayLR"),
    WarmupSteps("WarmupDecayLR"),
    WarmupType("WarmupDecayLR"),
    LastIteration("WarmupDecayLR"),

    TotalSteps("WarmupCosineLR"),
    {.path = "scheduler.params.warmup_min_ratio",
     .kind = kNumber,
     .min = 0,
     .max = 1,
     .scope = "WarmupCosineLR"},
    WarmupSteps("WarmupCosineLR"),
    {.path = "scheduler.params.cos_min_ratio",
     .kind = kNumber,
     .min = 0,
     .max = 1,
     .scope = "WarmupCosineLR"},
    WarmupType("WarmupCosineLR"),
    LastIteration("WarmupCosineLR"),

    Rate("scheduler.params.cycle_min_lr", "OneCycle"),
    Rate("scheduler.params.cycle_max_lr", "OneCycle"),
    {.path = "scheduler.params.decay_lr_rate", .kind = kNumber, .min = 0, .scope = "OneCycle"},
    Steps("scheduler.params.cycle_first_step_size", "OneCycle", 1),
    {.path = "scheduler.params.cycle_second_step_size",
     .kind = kInteger,
     .min = 0,
     .max = kLargestStep,
     .nullable = true,
     .scope = "OneCycle"},
    Steps("scheduler.params.cycle_first_stair_count", "OneCycle", 0),
    {.path = "scheduler.params.cycle_second_stair_count",
     .kind = kInteger,
     .min = 0,
     .max = kLargestStep,
     .nullable = true,
     .scope = "OneCycle"},
    Steps("scheduler.params.decay_step_size", "OneCycle", 0),
    {.path = "scheduler.params.cycle_momentum", .kind = kBool, .scope = "OneCycle"},
    {.path = "scheduler.params.cycle_min_mom",
     .kind = kNumberOrList,
     .min = 0,
     .max = 1,
     .scope = "OneCycle"},
    {.path = "scheduler.params.cycle_max_mom",
     .kind = kNumberOrList,
     .min = 0,
     .max = 1,
     .scope = "OneCycle"},
    {.path = "scheduler.params.decay_mom_rate", .kind = kNumber, .min = 0, .scope = "OneCycle"},
    LastIteration("OneCycle"),

    Rate("scheduler.params.lr_range_test_min_lr", "LRRangeTest"),
    Steps("scheduler.params.lr_range_test_step_size", "LRRangeTest", 1),
    {.path = "scheduler.params.lr_range_test_step_rate",
     .kind = kNumber,
     .min = 0,
     .scope = "LRRangeTest"},
    {.path = "scheduler.params.lr_range_test_staircase", .kind = kBool, .scope = "LRRangeTest"},
    LastIteration("LRRangeTest"),
};

}  // namespace

std::span<const KeyInfo> SchedulerKeys() {
  return kKeys;
}

}  // namespace ullage::config
