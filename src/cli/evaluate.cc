// `ullage evaluate`: loss and accuracy of a model directory on a token file.
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "cli/agreement.h"
#include "cli/commands.h"
#include "cli/evaluation.h"
#include "cli/model_weights.h"
#include "cli/setup.h"
#include "files/file_system.h"
#include "ullage/engine.h"

namespace ullage::cli {
namespace {

constexpr std::chrono::seconds kTimeout(300);

void Print(const EvaluateArguments& arguments, const EvaluationResult& result) {
  if (!arguments.json) {
    fmt::print("loss {:.6f}  accuracy {:.4f}  on {} records\n", result.loss, result.accuracy,
               result.records);
    return;
  }
  const nlohmann::ordered_json json = {
      {"loss", result.loss}, {"accuracy", result.accuracy}, {"records", result.records}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int RunEvaluate(const EvaluateArguments& arguments, const CommandLine& command_line) {
  if (const auto code = LaunchIfAsked(arguments.ranks, arguments.threads, command_line)) {
    return *code;
  }
  SetThreads(arguments.threads);
  const std::shared_ptr<Ranks> ranks = Ranks::FromEnvironment(kTimeout);
  files::PosixFileSystem fs;
  std::optional<data::Dataset> dataset;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<ModelWeights> weights;
  Together(ranks->comm(), [&] {
    model = ModelOnMeta(arguments.model, /*num_labels=*/0);
    dataset = data::Dataset::Open(fs, arguments.eval, arguments.max_length);
    dataset->CheckFor(LimitsOf(*model));
    weights = std::make_unique<ModelWeights>(files::WeightFiles::Open(fs, arguments.model), *model,
                                             std::vector<std::string>{}, /*seed=*/0);
    if (!weights->new_parameters().empty()) {
      throw ConfigError(fmt::format("{}: has no weights for {}", arguments.model,
                                    weights->new_parameters().front()),
                        "train a classifier first: ullage train");
    }
  });
  // Frozen parameters have no gradients, no master and no moments; with several ranks each holds
  // only its part of the weights.
  for (at::Tensor& parameter : model->module().parameters()) parameter.requires_grad_(false);
  const Settings settings = Settings::FromText(
      fmt::format(
          R"({{"train_micro_batch_size_per_gpu": {}, "zero_optimization": {{"stage": {}}}}})",
          arguments.batch, ranks->world_size() > 1 ? 3 : 0),
      "evaluate");
  EngineOptions options;
  options.weights = weights.get();
  Engine engine(NamedParameters(model->module()), settings, ranks, options);
  data::LoaderOptions loader;
  loader.rank = ranks->rank();
  loader.world_size = ranks->world_size();
  loader.padding.max_positions = model->max_positions();
  const EvaluationResult result =
      Evaluate(*model, *dataset, arguments.batch, loader, ranks->comm());
  if (ranks->rank() == 0) Print(arguments, result);
  return 0;
}

}  // namespace ullage::cli
