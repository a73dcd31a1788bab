// From a trace to what people are told.
#pragma once

#include <string>
#include <vector>

#include "memory/trace.h"
#include "ullage/planner.h"

namespace ullage::planner {

// What names a trace's sites.
struct Names {
  std::vector<std::string> operations;
  std::vector<std::string> parameters;
};

// Phases, peak and largest tensors; of CUDA's allocator nothing.
MemoryPrediction Summarise(const memory::Trace& trace, const Names& names);

// Replays the trace through a model of CUDA's caching allocator, set as an engine sets it: the
// engine's bytes until the end of kLoad as one piece, then each change as it came, and the
// workspaces of products. Sets `allocated`, `reserved` and `operators`.
void ReplayOnCuda(const memory::Trace& trace, const Names& names, const DeviceModel& device,
                  MemoryPrediction& prediction);

}  // namespace ullage::planner
