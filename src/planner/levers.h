// What could be changed in a job so that it holds less, and what each change would give.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"

namespace ullage::planner {

struct Lever {
  std::string change;  // of the settings, as a user writes it
  std::string cost;    // in time, or of the numbers
  Job job;             // with the change
  // Absent where there is no such plan, with the reason.
  std::optional<MemoryPrediction> prediction;
  std::string refused;
};

// Every change by itself, those that gain nothing too: what fits first, and of that the fastest.
// With `capacity` above 0, the bytes of the device that the job may take, then the fastest of all
// combinations that fit, if it is none of these.
std::vector<Lever> Levers(const Job& job, std::int64_t capacity);

}  // namespace ullage::planner
