#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "engine/parameter_list.h"
#include "planner/prediction.h"
#include "planner/step_time.h"
#include "torchx/meta_kernels.h"
#include "torchx/operator_watch.h"
#include "torchx/stand_in.h"
#include "torchx/storage_watch.h"
#include "ullage/error.h"

namespace ullage {
namespace {

// Runs `run` in a dry run, and tells what was held.
MemoryPrediction PredictOnce(const std::function<ParameterList()>& make_parameters,
                             const Settings& settings, const std::shared_ptr<Ranks>& ranks,
                             EngineOptions options, const DeviceModel& device,
                             const std::function<void(Engine&)>& run) {
  const torchx::CountedOnMeta counted;
  std::optional<torchx::StandsForCuda> stand_in;
  if (options.cuda) stand_in.emplace(device.multiprocessors);
  ParameterList parameters = make_parameters();
  planner::Names names;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters.entries().list) {
    names.parameters.push_back(name);
    tensors.push_back(tensor);
  }
  torchx::OperatorWatch operators;
  memory::Trace trace(&operators);
  operators.Tell(&trace.work());
  options.dry_run = true;
  options.trace = &trace;
  MemoryPrediction prediction;
  {
    Engine engine(std::move(parameters), settings, ranks, options);
    for (std::size_t p = 0; p < tensors.size(); ++p) {
      operators.Name(tensors[p], static_cast<std::int32_t>(p));
    }
    tensors.clear();
    const torchx::StorageWatch watch(c10::kMeta, trace);
    // What a dry run of the CPU has there in earnest, such as states of generators, a run has, too.
    std::optional<torchx::StorageWatch> in_earnest;
    if (!options.cuda) in_earnest.emplace(c10::kCPU, trace);
    run(engine);
    names.operations = operators.operations();
    prediction = planner::Summarise(trace, names);
    if (options.cuda) {
      planner::ReplayOnCuda(trace, names, device, prediction);
      prediction.time =
          planner::EstimateStep(trace.work(), engine.applied_steps(),
                                settings.ResolveBatchSizes(ranks->world_size()).accumulation_steps,
                                engine.statistics().records, device.rates);
      prediction.outside = OutsideBytes(device, engine.planned_bytes_on("host"));
    }
    prediction.host = engine.planned_bytes_on("host");
    prediction.disk = engine.planned_bytes_on("disk");
  }
  return prediction;
}

}  // namespace

// With a budget the plan depends on what operators hold, and that, by a little, on the plan:
// gradients wait elsewhere, and torch's allocator finds other gaps. So does what lies outside that.
MemoryPrediction Predict(const std::function<ParameterList()>& parameters, const Settings& settings,
                         const std::shared_ptr<Ranks>& ranks, EngineOptions options,
                         const DeviceModel& device, const std::function<void(Engine&)>& run) {
  if (!options.cuda || !settings.ullage.device_memory || options.operator_bytes > 0) {
    return PredictOnce(parameters, settings, ranks, options, device, run);
  }
  if (!options.outside_bytes) options.outside_bytes = device.outside;
  // For what a run has besides, such as another batch or a loss that somebody keeps.
  constexpr std::int64_t kSlack = 16 << 20;
  Settings unbounded = settings;
  unbounded.ullage.device_memory.reset();
  options.operator_bytes =
      PredictOnce(parameters, unbounded, ranks, options, device, run).operators + kSlack;
  constexpr int kTries = 8;
  MemoryPrediction prediction;
  for (int i = 0; i < kTries; ++i) {
    prediction = PredictOnce(parameters, settings, ranks, options, device, run);
    const std::int64_t outside_before = *options.outside_bytes;
    options.outside_bytes = std::max(*options.outside_bytes, prediction.outside);
    prediction.outside = *options.outside_bytes;
    const std::int64_t over =
        prediction.reserved + kSlack + prediction.outside - *settings.ullage.device_memory;
    if (over <= 0) {
      prediction.operators = options.operator_bytes;
      return prediction;
    }
    // A little more than what is over, or plans may come nearer and nearer and never be there.
    constexpr std::int64_t kAtLeast = 2 << 20;
    if (outside_before == *options.outside_bytes) options.operator_bytes += over + kAtLeast;
  }
  throw OutOfMemoryError(
      fmt::format(
          "ullage.device_memory: after {} plans torch's allocator would still need {}, {} in "
          "all",
          kTries, FormatBytes(prediction.reserved),
          FormatBytes(prediction.reserved + *options.outside_bytes)),
      "raise ullage.device_memory, or use a smaller train_micro_batch_size_per_gpu");
}

}  // namespace ullage
