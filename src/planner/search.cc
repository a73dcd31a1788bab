#include "planner/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "ullage/error.h"

namespace ullage::planner {
namespace {

bool HasOffload(const Settings& settings) {
  return settings.zero.offload_optimizer.device != OffloadDevice::kNone ||
         settings.zero.offload_param.device != OffloadDevice::kNone;
}

// The micro-batch itself, then halves of it.
std::vector<Job> WithMicroBatches(const Job& job) {
  std::vector<Job> jobs;
  const BatchSizes sizes = job.settings.ResolveBatchSizes(job.ranks);
  std::int64_t micro_batch = sizes.micro_batch;
  std::int64_t accumulation = sizes.accumulation_steps;
  while (true) {
    Job& changed = jobs.emplace_back(job);
    changed.settings.train_micro_batch_size_per_gpu = micro_batch;
    changed.settings.gradient_accumulation_steps = accumulation;
    changed.settings.train_batch_size = sizes.train_batch;
    if (micro_batch % 2 != 0) return jobs;
    micro_batch /= 2;
    accumulation *= 2;
  }
}

std::vector<Job> Variants(const Job& job, const Freedom& freedom) {
  std::vector<Job> jobs = freedom.micro_batch ? WithMicroBatches(job) : std::vector<Job>{job};
  const auto vary = [&](auto&& with) {
    std::vector<Job> all;
    for (const Job& each : jobs) with(each, all);
    jobs = std::move(all);
  };
  if (freedom.recompute) {
    vary([](const Job& each, std::vector<Job>& all) {
      for (const bool recompute : {false, true}) {
        all.push_back(each);
        all.back().settings.recompute = recompute;
      }
    });
  }
  if (freedom.stage && job.ranks > 1) {
    vary([](const Job& each, std::vector<Job>& all) {
      for (const int stage : {0, 1, 2, 3}) {
        all.push_back(each);
        all.back().settings.zero.stage = stage;
      }
    });
  }
  return jobs;
}

double Seconds(const Candidate& candidate) {
  return candidate.prediction.time ? candidate.prediction.time->total() : 0;
}

bool IsBetter(const Candidate& candidate, const Candidate& than) {
  return std::pair(Seconds(candidate), candidate.prediction.device()) <
         std::pair(Seconds(than), than.prediction.device());
}

// Nothing bounded: how fast it could be.
Candidate Unbounded(Job job) {
  Job free = job;
  free.settings.ullage.device_memory.reset();
  free.operator_bytes = 0;
  MemoryPrediction prediction = Predict(free);
  return {std::move(job), std::move(prediction)};
}

}  // namespace

Freedom LeftOpen(const Settings& settings) {
  const auto is_given = [&](std::string_view prefix) {
    return std::ranges::any_of(settings.given,
                               [&](const std::string& key) { return key.starts_with(prefix); });
  };
  const auto is_set = [&](const std::string& key) {
    const auto found = settings.set_by.find(key);
    return is_given(key) || (found != settings.set_by.end() && found->second != "derived");
  };
  Freedom freedom;
  freedom.micro_batch =
      !is_set("train_micro_batch_size_per_gpu") && !is_set("gradient_accumulation_steps");
  freedom.recompute = !is_set("ullage.recompute") && !is_given("activation_checkpointing");
  freedom.stage = !is_set("zero_optimization.stage");
  freedom.offload = !HasOffload(settings) && !is_given("zero_optimization.offload");
  return freedom;
}

Found FindFastest(const Job& job, const Freedom& freedom, std::int64_t capacity) {
  const std::int64_t budget = job.settings.ullage.device_memory.value_or(capacity);
  Found found;
  for (Job& variant : Variants(job, freedom)) {
    found.considered.push_back(Unbounded(std::move(variant)));
  }
  std::ranges::stable_sort(found.considered, IsBetter);
  for (const Candidate& candidate : found.considered) {
    // Memory costs time, never saves it.
    if (found.best && Seconds(candidate) >= Seconds(*found.best)) break;
    if (candidate.prediction.operators + candidate.prediction.outside > budget) {
      found.refused = fmt::format(
          "ullage.device_memory: {} do not suffice: operators alone need {}, and {} lie outside "
          "torch's allocator",
          FormatBytes(budget), FormatBytes(candidate.prediction.operators),
          FormatBytes(candidate.prediction.outside));
      continue;
    }
    Candidate placed = candidate;
    if (freedom.offload) {
      placed.job.settings.ullage.device_memory = budget;
      placed.job.operator_bytes = 0;
    }
    try {
      // Where all fits anyway, no bound is needed, which would only forbid.
      const bool fits_anyway =
          candidate.prediction.device() <= budget && !job.settings.ullage.device_memory.has_value();
      if (fits_anyway) {
        placed.job = candidate.job;
      } else if (placed.job.settings.ullage.device_memory) {
        placed.prediction = Predict(placed.job);
      }
      if (placed.prediction.device() > budget) continue;
    } catch (const OutOfMemoryError& error) {
      found.refused = error.what();
      continue;
    }
    if (!found.best || IsBetter(placed, *found.best)) found.best = std::move(placed);
  }
  return found;
}

std::string ChangeText(const Job& from, const Job& to) {
  std::vector<std::string> changes;
  const BatchSizes before = from.settings.ResolveBatchSizes(from.ranks);
  const BatchSizes after = to.settings.ResolveBatchSizes(to.ranks);
  if (before.micro_batch != after.micro_batch) {
    changes.push_back(
        fmt::format("\"train_micro_batch_size_per_gpu\": {}, \"gradient_accumulation_steps\": {}",
                    after.micro_batch, after.accumulation_steps));
  }
  if (from.settings.zero.stage != to.settings.zero.stage) {
    changes.push_back(
        fmt::format("\"zero_optimization\": {{\"stage\": {}}}", to.settings.zero.stage));
  }
  std::vector<std::string> own;
  if (from.settings.recompute != to.settings.recompute) {
    own.push_back(fmt::format("\"recompute\": \"{}\"", to.settings.recompute ? "block" : "none"));
  }
  if (to.settings.ullage.device_memory &&
      to.settings.ullage.device_memory != from.settings.ullage.device_memory) {
    own.push_back(
        fmt::format("\"device_memory\": \"{}MiB\"", *to.settings.ullage.device_memory >> 20));
  }
  if (!own.empty()) changes.push_back(fmt::format("\"ullage\": {{{}}}", fmt::join(own, ", ")));
  return fmt::format("{}", fmt::join(changes, ", "));
}

}  // namespace ullage::planner
