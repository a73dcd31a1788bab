#include "planner/job.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <algorithm>

namespace ullage::planner {
namespace {

// The first makes sums, the second adds to them; all that follow are alike.
constexpr std::int64_t kMicroSteps = 2;

// A batch as the loaders make them; packed rows have several documents.
models::Batch BatchOnMeta(models::Task task, std::int64_t records, std::int64_t tokens) {
  const auto make = [](at::IntArrayRef shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions().dtype(type).device(c10::kMeta));
  };
  const std::int64_t shape[] = {records, tokens};
  models::Batch batch;
  batch.input_ids = make(shape, at::kLong);
  if (task == models::Task::kClassification) {
    batch.attention_mask = make(shape, at::kLong);
    batch.labels = make({records}, at::kLong);
  } else {
    batch.labels = make(shape, at::kLong);
    batch.position_ids = make(shape, at::kLong);
    batch.document_ids = make(shape, at::kInt);
  }
  return batch;
}

}  // namespace

std::unique_ptr<models::Model> MakeModel(const Job& job) {
  auto model = models::MakeModel(job.model, job.num_labels, c10::Device(c10::kMeta));
  model->module().train();
  model->set_recompute(job.settings.recompute);
  return model;
}

MemoryPrediction Predict(const Job& job, const std::function<void(const Engine&)>& after) {
  std::unique_ptr<models::Model> model;
  EngineOptions options;
  options.cuda = job.cuda;
  options.operator_bytes = job.operator_bytes;
  options.default_no_decay = MakeModel(job)->no_decay_patterns();
  const auto parameters = [&] {
    model = MakeModel(job);
    return NamedParameters(model->module());
  };
  return ullage::Predict(
      parameters, job.settings, Ranks::Imagined(job.rank, job.ranks), options, job.device,
      [&](Engine& engine) {
        const BatchSizes sizes = engine.batch_sizes();
        const std::int64_t micro_steps = std::min(sizes.accumulation_steps, kMicroSteps);
        engine.SetAccumulationSteps(micro_steps);
        for (std::int64_t m = 0; m < micro_steps; ++m) {
          const models::Batch batch = BatchOnMeta(model->task(), sizes.micro_batch, job.sequence);
          engine.Backward(engine.Forward([&] { return model->Loss(batch).loss; }));
        }
        engine.Step();
        if (job.eval_sequence > 0) {
          model->module().eval();
          const at::NoGradGuard no_grad;
          model->Loss(BatchOnMeta(model->task(),
                                  job.eval_records > 0 ? job.eval_records : sizes.micro_batch,
                                  job.eval_sequence));
        }
        if (after) after(engine);
      });
}

}  // namespace ullage::planner
