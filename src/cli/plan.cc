// `ullage plan`: the engine itself on tensors without memory, for one step of a rank that may be
// one of many.
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/data_choice.h"
#include "cli/setup.h"
#include "files/file_system.h"
#include "ullage/engine.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

constexpr std::int64_t kUsualRecord = 128;  // tokens of a record to classify

std::string ConfigPath(const std::string& model) {
  files::PosixFileSystem fs;
  const auto status = fs.Stat(model);
  return status && status->is_directory ? model + "/config.json" : model;
}

Settings SettingsFor(const PlanArguments& arguments) {
  Settings settings = Settings::FromFile(arguments.config);
  if (arguments.micro_batch > 0) {
    settings.train_micro_batch_size_per_gpu = arguments.micro_batch;
    settings.train_batch_size.reset();
    settings.set_by["train_micro_batch_size_per_gpu"] = "command line";
  }
  ResolveBatches(settings, arguments.ranks);
  return settings;
}

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

void RunStep(models::Model& model, Engine& engine, std::int64_t sequence) {
  const BatchSizes& sizes = engine.batch_sizes();
  const models::Batch batch = BatchOnMeta(model.task(), sizes.micro_batch, sequence);
  for (std::int64_t m = 0; m < sizes.accumulation_steps; ++m) {
    engine.Backward(engine.Forward([&] { return model.Loss(batch).loss; }));
  }
  engine.Step();
}

void PrintText(const PlanArguments& arguments, const Engine& engine, std::int64_t sequence) {
  for (const std::string& line : engine.StartLines()) fmt::print("{}\n", line);
  fmt::print("{}", engine.PlanText());
  fmt::print("at most, in a dry run of rank {}, {} records of {} tokens in a forward:\n",
             arguments.rank, engine.batch_sizes().micro_batch, sequence);
  for (const auto& [tag, bytes] : engine.memory().peak) {
    if (bytes > 0) fmt::print("{:<12}{:>14}\n", tag, FormatBytes(bytes));
  }
  fmt::print("activations, batches and what torch itself holds come on top\n");
}

void PrintJson(const PlanArguments& arguments, const Engine& engine, std::int64_t sequence) {
  using Json = nlohmann::ordered_json;
  Json peak = Json::object();
  for (const auto& [tag, bytes] : engine.memory().peak) peak[tag] = bytes;
  const Json json = {{"rank", arguments.rank},
                     {"micro_batch", engine.batch_sizes().micro_batch},
                     {"sequence", sequence},
                     {"peak_bytes", std::move(peak)},
                     {"plan", Json::parse(engine.PlanJson())}};
  fmt::print("{}\n", json.dump(1));
}

}  // namespace

int RunPlan(const PlanArguments& arguments) {
  if (arguments.rank >= arguments.ranks) {
    throw ConfigError(fmt::format("--rank {} of {} ranks", arguments.rank, arguments.ranks),
                      "ranks count from 0");
  }
  const Settings settings = SettingsFor(arguments);
  const auto model = models::MakeModel(ConfigPath(arguments.model), 0, c10::Device(c10::kMeta));
  if (arguments.sequence > model->max_positions()) {
    throw ConfigError(fmt::format("--seq {}: the model has {} positions", arguments.sequence,
                                  model->max_positions()),
                      "plan for at most as many");
  }
  const std::int64_t usual = model->task() == models::Task::kClassification
                                 ? std::min(kUsualRecord, model->max_positions())
                                 : UsualSequenceLength(*model);
  const std::int64_t sequence = arguments.sequence > 0 ? arguments.sequence : usual;
  EngineOptions options;
  options.default_no_decay = model->no_decay_patterns();
  options.cuda = arguments.cuda;
  options.dry_run = true;
  if (!arguments.operator_bytes.empty()) {
    options.operator_bytes = ParseBytes(arguments.operator_bytes);
  }
  Engine engine(NamedParameters(model->module()), settings,
                Ranks::Imagined(arguments.rank, arguments.ranks), options);
  model->module().train();
  model->set_recompute(settings.recompute);
  RunStep(*model, engine, sequence);
  arguments.json ? PrintJson(arguments, engine, sequence) : PrintText(arguments, engine, sequence);
  return 0;
}

}  // namespace ullage::cli
