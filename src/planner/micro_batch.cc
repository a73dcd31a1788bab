#include "planner/micro_batch.h"

#include <algorithm>

#include "ullage/error.h"

namespace ullage::planner {
namespace {

bool Fits(Job job, std::int64_t micro_batch, std::int64_t capacity) {
  job.settings.gradient_accumulation_steps =
      job.settings.ResolveBatchSizes(job.ranks).accumulation_steps;
  job.settings.train_micro_batch_size_per_gpu = micro_batch;
  job.settings.train_batch_size.reset();
  try {
    return Predict(job).device() <= capacity;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

}  // namespace

std::int64_t LargestMicroBatch(const Job& job, std::int64_t capacity, std::int64_t most) {
  std::int64_t fits = 0, too_large = most + 1;
  for (std::int64_t next = 1; next < too_large; next = std::min(2 * next, most)) {
    if (!Fits(job, next, capacity)) {
      too_large = next;
    } else {
      fits = next;
      if (next == most) break;
    }
  }
  while (too_large - fits > 1) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    (Fits(job, middle, capacity) ? fits : too_large) = middle;
  }
  return fits;
}

}  // namespace ullage::planner
