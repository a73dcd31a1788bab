// How much host memory this process can still get without being killed for it.
#pragma once

#include <cstdint>
#include <string>

namespace ullage::tiers {

struct AvailableMemory {
  std::int64_t bytes = 0;
  std::string bound;  // what sets it, for messages: "MemAvailable of this host", a control group
};

// The smaller of MemAvailable and what the control groups of this process (version 2 and 1, with
// all their parents) leave; page cache that they would give back counts as free, swap does not.
// What cannot be read sets no bound. `root` stands before /proc and /sys, for tests.
AvailableMemory FindAvailableMemory(const std::string& root = "");

}  // namespace ullage::tiers
