// Finds the fastest way to do a job in the memory that there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/job.h"

namespace ullage::planner {

// What may be changed in a job. What is in a forward is the micro-batch: the batch of a step stays.
// Offload is no choice of its own: what does not fit moves to the host, and no more.
struct Freedom {
  bool micro_batch = false;
  bool recompute = false;
  bool stage = false;
  bool offload = false;
};
// All that the settings leave open: keys that nobody has given.
Freedom LeftOpen(const Settings& settings);

struct Candidate {
  Job job;
  MemoryPrediction prediction;
};

struct Found {
  std::optional<Candidate> best;      // none fits
  std::vector<Candidate> considered;  // without regard to memory, fastest first
  std::string refused;                // why the last that was tried does not fit, if none does
};

// With ullage.device_memory of `job`, or else `capacity` bytes of its device. Of two that are
// equally fast the one that needs less memory. Deterministic.
Found FindFastest(const Job& job, const Freedom& freedom, std::int64_t capacity);

// What `to` has that `from` has not, as a user writes it; and what that costs.
std::string ChangeText(const Job& from, const Job& to);

}  // namespace ullage::planner
