// `ullage plan`: the engine itself on tensors without memory, for one step of a rank that may be
// one of many.
#include <ATen/ops/full.h>
#include <c10/core/Device.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/setup.h"
#include "files/file_system.h"
#include "ullage/engine.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

constexpr std::int64_t kUsualSequence = 128;

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

// The ring in which gradients wait goes on where the pass before has left it, so that the first
// pass alone does not show the most bytes.
constexpr int kSteps = 3;

void RunSteps(models::Model& model, Engine& engine, std::int64_t sequence) {
  const BatchSizes& sizes = engine.batch_sizes();
  const auto options = at::TensorOptions().dtype(at::kLong).device(c10::kMeta);
  const at::Tensor ids = at::full({sizes.micro_batch, sequence}, 0, options);
  const at::Tensor mask = at::full({sizes.micro_batch, sequence}, 1, options);
  const at::Tensor labels = at::full({sizes.micro_batch}, 0, options);
  for (int step = 0; step < kSteps; ++step) {
    for (std::int64_t m = 0; m < sizes.accumulation_steps; ++m) {
      engine.Backward(engine.Forward([&] { return model.Loss(ids, mask, labels).loss; }));
    }
    engine.Step();
  }
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
  const std::int64_t sequence = arguments.sequence > 0
                                    ? arguments.sequence
                                    : std::min(kUsualSequence, model->max_positions());
  EngineOptions options;
  options.default_no_decay = model->no_decay_patterns();
  options.dry_run = true;
  Engine engine(NamedParameters(model->module()), settings,
                Ranks::Imagined(arguments.rank, arguments.ranks), options);
  model->module().train();
  RunSteps(*model, engine, sequence);
  arguments.json ? PrintJson(arguments, engine, sequence) : PrintText(arguments, engine, sequence);
  return 0;
}

}  // namespace ullage::cli
