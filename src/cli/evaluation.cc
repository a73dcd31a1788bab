#include "cli/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <torch/nn/module.h>

#include <chrono>

#include "cli/agreement.h"
#include "files/token_file.h"

namespace ullage::cli {
namespace {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module)
      : module_(module), training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  const bool training_;
  const at::NoGradGuard no_grad_;
};

struct Counts {
  double loss = 0;
  std::int64_t correct = 0;
  std::int64_t counted = 0;
};

void Add(models::Model& model, const data::Batch& batch, Counts& counts) {
  const auto [loss, logits] = model.Loss(batch.input_ids, batch.attention_mask, batch.labels);
  const at::Tensor classes = at::argmax(logits, 1).contiguous();
  const auto* chosen = classes.const_data_ptr<std::int64_t>();
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  counts.loss += loss.item<double>();
  for (std::int64_t i = 0; i < batch.records; ++i) {
    if (labels[i] == files::kIgnoredLabel) continue;
    ++counts.counted;
    counts.correct += chosen[i] == labels[i] ? 1 : 0;
  }
}

}  // namespace

EvaluationResult Evaluate(models::Model& model, const data::Dataset& dataset,
                          std::int64_t batch_records, const data::LoaderOptions& options,
                          comm::Comm& comm) {
  const auto start = std::chrono::steady_clock::now();
  const EvaluationMode mode(model.module());
  data::EvaluationLoader loader(dataset, batch_records, options);
  Counts mine;
  while (const auto batch = loader.Next()) {
    if (batch->records > 0) Add(model, *batch, mine);
  }
  Counts total;
  for (const Counts& theirs : FromAllRanks(comm, mine, Item::kEvaluation)) {
    total.loss += theirs.loss;
    total.correct += theirs.correct;
    total.counted += theirs.counted;
  }
  const auto counted = static_cast<double>(total.counted);
  return {total.loss / counted, static_cast<double>(total.correct) / counted, total.counted,
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace ullage::cli
