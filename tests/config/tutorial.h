// A settings file in the style of a public tutorial, and what reading it must give.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ullage/error.h"
#include "ullage/settings.h"

namespace ullage::config {

struct Tutorial {
  const char* name;
  const char* text;
  int stage;
  Precision precision;
  double lr;
  int world_size;            // ranks for which the batch keys are meant
  std::int64_t micro_batch;  // per rank, at that number
  std::size_t scheduler;     // index in SchedulerSettings; 0: none
  OffloadDevice offload_optimizer = OffloadDevice::kNone;
  OffloadDevice offload_param = OffloadDevice::kNone;
  bool recompute = false;
};

inline void PrintTo(const Tutorial& tutorial, std::ostream* out) {
  *out << tutorial.name;
}

inline std::string NameOf(const testing::TestParamInfo<Tutorial>& info) {
  return info.param.name;
}

inline void ExpectRead(const Tutorial& tutorial) {
  const Settings settings = Settings::FromText(tutorial.text, tutorial.name);
  EXPECT_EQ(settings.zero.stage, tutorial.stage);
  EXPECT_EQ(settings.precision, tutorial.precision);
  EXPECT_EQ(settings.optimizer.lr, tutorial.lr);
  EXPECT_EQ(settings.scheduler.index(), tutorial.scheduler);
  EXPECT_EQ(settings.zero.offload_optimizer.device, tutorial.offload_optimizer);
  EXPECT_EQ(settings.zero.offload_param.device, tutorial.offload_param);
  EXPECT_EQ(settings.recompute, tutorial.recompute);
  EXPECT_EQ(settings.ResolveBatchSizes(tutorial.world_size).micro_batch, tutorial.micro_batch);
}

// One whose features are not all offered, and how the refusal starts.
struct RefusedTutorial {
  const char* name;
  const char* text;
  const char* message;
};

inline void PrintTo(const RefusedTutorial& tutorial, std::ostream* out) {
  *out << tutorial.name;
}

inline std::string NameOfRefused(const testing::TestParamInfo<RefusedTutorial>& info) {
  return info.param.name;
}

inline void ExpectRefused(const RefusedTutorial& tutorial) {
  try {
    Settings::FromText(tutorial.text, tutorial.name);
    ADD_FAILURE() << "accepted";
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(std::string(error.what()).find(tutorial.message), 0u) << error.what();
  }
}

}  // namespace ullage::config
