#include "cli/probe.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "cli/choice.h"
#include "cli/device_batch.h"

namespace ullage::cli {
namespace {

// A batch is padded to its longest record, so that of the batches of so many records the one with
// the longest of all is the largest. Here every record is that one.
data::Batch LargestBatch(const TrainArguments& arguments, const models::Model& model,
                         const data::TrainingData& data, std::int64_t records) {
  const std::vector<std::int64_t> lengths = data::Lengths(data);
  const std::int64_t longest = std::ranges::max_element(lengths) - lengths.begin();
  const std::vector<std::int64_t> batch(static_cast<std::size_t>(std::min(records, data.records())),
                                        longest);
  return data.MakeBatch(
      batch, {std::max<std::int64_t>(1, arguments.pad_to_multiple_of), model.max_positions()});
}

std::int64_t Measure(const TrainArguments& arguments, const TrainSetup& setup,
                     const std::shared_ptr<Ranks>& ranks, const EngineOptions& options) {
  const auto model = ModelOnMeta(arguments.model, setup.model->num_labels());
  model->module().train();
  model->set_recompute(setup.settings.recompute);
  return MeasureOperatorBytes(
      NamedParameters(model->module()), setup.settings, ranks, options, [&](Engine& engine) {
        const c10::Device device = DeviceFor(options.cuda);  // the engine has chosen it
        const models::Batch inputs = OnDevice(
            LargestBatch(arguments, *model, *setup.train, setup.batch_sizes.micro_batch), device);
        engine.Backward(engine.Forward([&] { return model->Loss(inputs).loss; }));
        if (!setup.eval) return;
        model->module().eval();
        const at::NoGradGuard no_grad;
        const std::int64_t records =
            arguments.eval_batch > 0 ? arguments.eval_batch : setup.batch_sizes.micro_batch;
        model->Loss(OnDevice(LargestBatch(arguments, *model, *setup.eval, records), device));
      });
}

}  // namespace

void KeepRoomForOperators(const TrainArguments& arguments, const TrainSetup& setup,
                          const std::shared_ptr<Ranks>& ranks, EngineOptions& options) {
  if (!options.cuda || !setup.settings.ullage.device_memory) return;
  LongestRecords longest{LongestOf(arguments, *setup.train, *setup.model)};
  if (setup.eval) longest.eval = LongestOf(arguments, *setup.eval, *setup.model);
  const planner::Job job =
      JobOf(arguments, setup.settings, *ranks, longest, setup.model->num_labels());
  const char* how = "predicted";
  if (job.device.is_measured) {
    const MemoryPrediction prediction = planner::Predict(job);
    options.operator_bytes = prediction.operators;
    options.outside_bytes = prediction.outside;
  } else {
    how = "measured";
    options.operator_bytes = Measure(arguments, setup, ranks, options);
  }
  if (ranks->rank() == 0) {
    fmt::print("{} for ullage.device_memory: operators need {} for {} records of {} tokens\n", how,
               FormatBytes(options.operator_bytes), setup.batch_sizes.micro_batch, longest.train);
  }
}

}  // namespace ullage::cli
