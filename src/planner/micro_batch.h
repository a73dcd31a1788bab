// How many records fit into one forward.
#pragma once

#include <cstdint>

#include "planner/job.h"

namespace ullage::planner {

// The largest micro-batch of the job, at most `most`, whose prediction keeps within `capacity`
// bytes of the device; 0 when not even one record does. The accumulation steps stay.
std::int64_t LargestMicroBatch(const Job& job, std::int64_t capacity, std::int64_t most = 4096);

}  // namespace ullage::planner
