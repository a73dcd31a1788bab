#include "cli/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/agreement.h"
#include "cli/device_batch.h"
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

bool Classifies(const models::Model& model) {
  return model.task() == models::Task::kClassification;
}

void Add(models::Model& model, const data::Batch& batch, c10::Device device, Counts& counts) {
  const auto [loss, logits] = model.Loss(OnDevice(batch, device));
  counts.loss += loss.item<double>();
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  const auto numel = batch.labels.numel();
  counts.counted += numel - std::count(labels, labels + numel, files::kIgnoredLabel);
  if (!Classifies(model)) return;
  const at::Tensor classes = at::argmax(logits, 1).cpu().contiguous();
  const auto* chosen = classes.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.records; ++i) {
    if (labels[i] != files::kIgnoredLabel) counts.correct += chosen[i] == labels[i] ? 1 : 0;
  }
}

}  // namespace

EvaluationResult Evaluate(models::Model& model, const data::TrainingData& data,
                          std::int64_t batch_records, const data::LoaderOptions& options,
                          comm::Comm& comm, c10::Device device) {
  const auto start = std::chrono::steady_clock::now();
  const EvaluationMode mode(model.module());
  data::EvaluationLoader loader(data, batch_records, options);
  Counts mine;
  while (const auto batch = loader.Next()) {
    if (batch->records > 0) Add(model, *batch, device, mine);
  }
  Counts total;
  for (const Counts& theirs : FromAllRanks(comm, mine, Item::kEvaluation)) {
    total.loss += theirs.loss;
    total.correct += theirs.correct;
    total.counted += theirs.counted;
  }
  const auto counted = static_cast<double>(total.counted);
  EvaluationResult result;
  result.loss = total.loss / counted;
  result.labels = total.counted;
  if (Classifies(model)) {
    result.accuracy = static_cast<double>(total.correct) / counted;
  } else {
    result.perplexity = std::exp(result.loss);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string Describe(const EvaluationResult& result) {
  if (result.perplexity) {
    return fmt::format("loss {:.4f}  perplexity {:.4g} on {} tokens", result.loss,
                       *result.perplexity, result.labels);
  }
  return fmt::format("loss {:.4f}  accuracy {:.4f} on {} records", result.loss,
                     result.accuracy.value_or(0), result.labels);
}

}  // namespace ullage::cli
