#include "planner/levers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

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
                           "none in time; the numbers change: weights and activations are rounded "
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

// Recompute, a budget, then smaller and smaller micro-batches.
std::optional<Lever> FirstCombination(const Job& job, std::int64_t capacity) {
  Job changed = job;
  std::vector<std::string> settings, costs;
  if (!changed.settings.recompute) {
    changed.settings.recompute = true;
    settings.emplace_back("\"recompute\": \"block\"");
    costs.emplace_back(kRecomputes);
  }
  if (job.cuda && !HasOffload(job.settings)) {
    Bound(changed, capacity);
    settings.push_back(fmt::format("\"device_memory\": \"{}MiB\"", capacity >> 20));
    costs.emplace_back(kHostUpdates);
  }
  std::vector<std::string> changes;
  if (!settings.empty()) {
    changes.push_back(fmt::format("\"ullage\": {{{}}}", fmt::join(settings, ", ")));
    Lever lever = Tried(changes.front(), fmt::format("{}", fmt::join(costs, "; ")), changed);
    if (Fits(lever, capacity)) return lever;
  }
  costs.emplace_back("smaller products");
  while (HalveMicroBatch(changed)) {
    changes.resize(settings.empty() ? 0 : 1);
    changes.push_back(BatchText(changed));
    Lever lever = Tried(fmt::format("{}", fmt::join(changes, ", ")),
                        fmt::format("{}", fmt::join(costs, "; ")), changed);
    if (Fits(lever, capacity)) return lever;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Lever> Levers(const Job& job, std::int64_t capacity) {
  std::vector<Lever> levers;
  AddSingle(job, capacity, levers);
  if (capacity <= 0) return levers;
  if (std::ranges::any_of(levers, [&](const Lever& lever) { return Fits(lever, capacity); })) {
    return levers;
  }
  if (auto combination = FirstCombination(job, capacity)) levers.push_back(std::move(*combination));
  return levers;
}

}  // namespace ullage::planner
