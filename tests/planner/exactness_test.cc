// What is predicted on Meta is what operators and engine hold on a CPU: every byte, in every phase.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "../models/tiny_llama.h"
#include "engine/support.h"
#include "memory/trace.h"
#include "planner/prediction.h"
#include "torchx/operator_watch.h"
#include "torchx/storage_watch.h"
#include "ullage/engine.h"
#include "ullage/planner.h"

namespace ullage {
namespace {

using nlohmann::json;

struct Job {
  json config;
  std::int64_t records = 2;
  std::int64_t tokens = 8;
  std::int64_t micro_steps = 1;
  int stage = 0;
  bool recompute = false;
  bool offload = false;
  std::string precision = "fp32";
  int ranks = 1;

  std::string Name() const {
    return config.value("model_type", "") + " b" + std::to_string(records) + " s" +
           std::to_string(tokens) + " gas" + std::to_string(micro_steps) + " stage" +
           std::to_string(stage) + (recompute ? " recompute" : "") + (offload ? " offload" : "") +
           " " + precision;
  }

  Settings settings() const {
    json text = {{"train_micro_batch_size_per_gpu", records},
                 {"gradient_accumulation_steps", micro_steps},
                 {"zero_optimization", {{"stage", stage}}},
                 {"ullage", {{"unit_size", "16KiB"}}}};
    if (precision != "fp32") text[precision] = {{"enabled", true}};
    if (offload) {
      text["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}};
      text["zero_optimization"]["stage3_param_persistence_threshold"] = 0;
      if (stage == 3) text["zero_optimization"]["offload_param"] = {{"device", "cpu"}};
    }
    return Settings::FromText(text.dump());
  }
};

models::Batch BatchOf(const Job& job, models::Task task, c10::Device device) {
  models::Batch batch;
  batch.input_ids = at::ones({job.records, job.tokens}, at::TensorOptions(device).dtype(at::kLong));
  if (task == models::Task::kClassification) {
    batch.attention_mask = at::ones_like(batch.input_ids);
    batch.labels = at::ones({job.records}, batch.input_ids.options());
  } else {
    batch.labels = at::ones_like(batch.input_ids);
  }
  return batch;
}

void RunStep(const Job& job, models::Model& model, Engine& engine, c10::Device device) {
  const models::Batch batch = BatchOf(job, model.task(), device);
  for (std::int64_t m = 0; m < job.micro_steps; ++m) {
    engine.Backward(engine.Forward([&] { return model.Loss(batch).loss; }));
  }
  engine.Step();
}

MemoryPrediction Predicted(const Job& job, int rank = 0) {
  std::unique_ptr<models::Model> model;
  return Predict(
      [&] {
        model = models::MakeFromText(job.config.dump(), 0, at::kMeta);
        model->module().train();
        model->set_recompute(job.recompute);
        return NamedParameters(model->module());
      },
      job.settings(), Ranks::Imagined(rank, job.ranks), {}, KnownDevices().front(),
      [&](Engine& engine) { RunStep(job, *model, engine, c10::kMeta); });
}

MemoryPrediction Measured(const Job& job, const std::shared_ptr<Ranks>& ranks) {
  const auto model = models::MakeFromText(job.config.dump());
  models::Initialise(*model, 3);
  model->module().train();
  model->set_recompute(job.recompute);
  planner::Names names;
  torchx::OperatorWatch operators;
  memory::Trace trace(&operators);
  EngineOptions options;
  options.trace = &trace;
  Engine engine(NamedParameters(model->module()), job.settings(), ranks, options);
  std::int32_t index = 0;
  for (const auto& parameter : model->module().named_parameters()) {
    names.parameters.push_back(parameter.key());
    operators.Name(parameter.value(), index++);
  }
  const torchx::StorageWatch watch(c10::kCPU, trace);
  RunStep(job, *model, engine, c10::kCPU);
  names.operations = operators.operations();
  return planner::Summarise(trace, names);
}

std::string ToText(const MemoryPrediction& prediction) {
  std::string text;
  for (const PhaseBytes& phase : prediction.phases) {
    text += phase.phase + " " + std::to_string(phase.total) + ":";
    for (const auto& [tag, bytes] : phase.by_tag) text += " " + tag + " " + std::to_string(bytes);
    text += "\n";
  }
  return text;
}

std::vector<Job> Jobs() {
  const json bert = models::TinyConfig({{"hidden_size", 32},
                                        {"intermediate_size", 96},
                                        {"num_attention_heads", 4},
                                        {"max_position_embeddings", 64}});
  std::vector<json> shapes = {bert};
  json plain = bert;
  plain["hidden_dropout_prob"] = 0.0;
  plain["attention_probs_dropout_prob"] = 0.0;
  shapes.push_back(plain);
  shapes.push_back(models::TinyLlamaConfig());
  shapes.push_back(models::TinyLlamaConfig({{"model_type", "mistral"}, {"sliding_window", 5}}));
  shapes.push_back(
      models::TinyLlamaConfig({{"model_type", "qwen2"}, {"tie_word_embeddings", true}}));
  std::vector<Job> jobs;
  for (const json& config : shapes) {
    for (const bool recompute : {false, true}) {
      for (const char* precision : {"fp32", "bf16"}) {
        jobs.push_back({config, 1, 8, 1, 0, recompute, false, precision});
        jobs.push_back({config, 4, 16, 2, 1, recompute, false, precision});
        jobs.push_back({config, 3, 7, 1, 3, recompute, true, precision});
      }
    }
  }
  return jobs;
}

TEST(Prediction, IsEveryByteOfARunOnACpu) {
  const auto ranks = Ranks::FromEnvironment(std::chrono::seconds(60));
  for (const Job& job : Jobs()) {
    SCOPED_TRACE(job.Name());
    EXPECT_EQ(ToText(Predicted(job)), ToText(Measured(job, ranks)));
  }
}

TEST(Prediction, IsEveryByteOfEachRank) {
  for (const json& config :
       {models::TinyConfig({{"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0}}),
        models::TinyLlamaConfig({{"model_type", "qwen2"}})}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool recompute : {false, true}) {
        Job job{config, 2, 8, 2, stage, recompute, /*offload=*/stage == 3, "bf16"};
        job.ranks = 2;
        SCOPED_TRACE(job.Name() + " on 2 ranks");
        testing::OnRanks(job.ranks, [&](const std::shared_ptr<Ranks>& ranks) {
          MemoryPrediction measured = Measured(job, ranks);
          // The exchange of the norm is a tensor of c10d's, which ranks that are imagined lack.
          PhaseBytes& step = measured.phases.back();
          ASSERT_EQ(step.by_tag.back(),
                    (std::pair<std::string, std::int64_t>("temporaries", 1104)));
          step.total -= step.by_tag.back().second;
          step.by_tag.pop_back();
          EXPECT_EQ(ToText(Predicted(job, ranks->rank())), ToText(measured));
        });
      }
    }
  }
}

}  // namespace
}  // namespace ullage
