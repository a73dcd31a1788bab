#include "planner/levers.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/search.h"
#include "ullage/error.h"

namespace ullage::planner {
namespace {

constexpr const char* kRecomputes = "each layer's forward runs twice";
constexpr const char* kHostUpdates =
    "gradients cross to the host and weights come back; the host's cores update, beside the device";

Lever Tried(std::string change, std::string cost, Job job) {
  Lever lever{std::move(change), std::move(cost), std::move(job), std::nullopt, {}};
  try {
    lever.prediction = Predict(lever.job);
  } catch (const OutOfMemoryError& error) {
    lever.refused = error.what();
  }
  return lever;
}

// Half the records in a forward, twice as many forwards: the same batch for each step.
bool HalveMicroBatch(Job& job) {
  const BatchSizes sizes = job.settings.ResolveBatchSizes(job.ranks);
  if (sizes.micro_batch % 2 != 0) return false;
  job.settings.train_micro_batch_size_per_gpu = sizes.micro_batch / 2;
  job.settings.gradient_accumulation_steps = sizes.accumulation_steps * 2;
  job.settings.train_batch_size.reset();
  return true;
}

std::string BatchText(const Job& job) {
  const BatchSizes sizes = job.settings.ResolveBatchSizes(job.ranks);
  return fmt::format("\"train_micro_batch_size_per_gpu\": {}, \"gradient_accumulation_steps\": {}",
                     sizes.micro_batch, sizes.accumulation_steps);
}

OffloadSettings OnHost() {
  OffloadSettings host;
  host.device = OffloadDevice::kCpu;
  return host;
}

bool HasOffload(const Settings& settings) {
  return settings.zero.offload_optimizer.device != OffloadDevice::kNone ||
         settings.zero.offload_param.device != OffloadDevice::kNone;
}

// Lets the plan move just what does not fit.
void Bound(Job& job, std::int64_t capacity) {
  job.settings.ullage.device_memory = capacity;
  job.operator_bytes = 0;
}

std::string BudgetText(std::int64_t capacity) {
  return fmt::format("\"ullage\": {{\"device_memory\": \"{}MiB\"}}", capacity >> 20);
}

void AddSingle(const Job& job, std::int64_t capacity, std::vector<Lever>& levers) {
  for (int stage = job.settings.zero.stage + 1; stage <= 3; ++stage) {
    Job changed = job;
    changed.settings.zero.stage = stage;
    levers.push_back(Tried(fmt::format("\"zero_optimization\": {{\"stage\": {}}}", stage),
                           job.ranks == 1 ? "nothing, and it gains nothing on one rank"
                           : stage == 3   ? "weights are gathered for each use"
                                          : "nothing",
                           std::move(changed)));
  }
  if (Job changed = job; HalveMicroBatch(changed)) {
    std::string text = BatchText(changed);
    levers.push_back(Tried(std::move(text), "smaller products; the same batch for each step",
                           std::move(changed)));
  }
  if (!job.settings.recompute) {
    Job changed = job;
    changed.settings.recompute = true;
    levers.push_back(
        Tried("\"ullage\": {\"recompute\": \"block\"}", kRecomputes, std::move(changed)));
  }
  if (job.settings.precision == Precision::kFloat32) {
    Job changed = job;
    changed.settings.precision = Precision::kBFloat16;
    levers.push_back(Tried("\"bf16\": {\"enabled\": true}",
                           "the numbers change: weights and activations are rounded "
                           "to 16 bit, sums and optimizer stay fp32",
                           std::move(changed)));
  }
  if (HasOffload(job.settings)) return;
  if (job.cuda && capacity > 0 && !job.settings.ullage.device_memory) {
    Job changed = job;
    Bound(changed, capacity);
    levers.push_back(Tried(BudgetText(capacity),
                           std::string(kHostUpdates) + ", for what has to move",
                           std::move(changed)));
  }
  Job state = job;
  state.settings.zero.offload_optimizer = OnHost();
  levers.push_back(Tried("\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}",
                         kHostUpdates, state));
  state.settings.zero.stage = 3;
  state.settings.zero.offload_param = OnHost();
  levers.push_back(
      Tried("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
            "{\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}}",
            "the same, and weights come from the host for each use", std::move(state)));
}

bool Fits(const Lever& lever, std::int64_t capacity) {
  return lever.prediction && lever.prediction->device() <= capacity;
}

double Seconds(const Lever& lever) {
  return lever.prediction && lever.prediction->time ? lever.prediction->time->total() : 0;
}

// Of all combinations the fastest.
std::optional<Lever> Fastest(const Job& job, std::int64_t capacity) {
  Freedom freedom{.micro_batch = true, .recompute = true, .stage = true};
  freedom.offload = job.cuda && !HasOffload(job.settings);
  Found found = FindFastest(job, freedom, capacity);
  if (!found.best) return std::nullopt;
  std::string change = ChangeText(job, found.best->job);
  if (change.empty()) return std::nullopt;  // the job as it is
  return Lever{std::move(change),
               "the fastest that fits",
               std::move(found.best->job),
               std::move(found.best->prediction),
               {}};
}

}  // namespace

std::vector<Lever> Levers(const Job& job, std::int64_t capacity) {
  std::vector<Lever> levers;
  AddSingle(job, capacity, levers);
  if (job.cuda) {  // else there are no times
    std::ranges::stable_sort(levers, [&](const Lever& a, const Lever& b) {
      return std::tuple(!Fits(a, capacity), !a.prediction, Seconds(a)) <
             std::tuple(!Fits(b, capacity), !b.prediction, Seconds(b));
    });
  }
  if (capacity <= 0) return levers;
  std::optional<Lever> fastest = Fastest(job, capacity);
  const bool is_there = fastest && std::ranges::any_of(levers, [&](const Lever& lever) {
                          return lever.change == fastest->change;
                        });
  if (fastest && !is_there) levers.push_back(std::move(*fastest));
  return levers;
}

}  // namespace ullage::planner
