// `ullage evaluate`: loss and accuracy, or perplexity, of a model directory on a token file.
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "cli/agreement.h"
#include "cli/commands.h"
#include "cli/data_choice.h"
#include "cli/device_batch.h"
#include "cli/evaluation.h"
#include "cli/model_weights.h"
#include "cli/setup.h"
#include "files/file_system.h"
#include "ullage/engine.h"

namespace ullage::cli {
namespace {

constexpr std::chrono::seconds kTimeout(300);

void Print(const EvaluateArguments& arguments, const EvaluationResult& result) {
  const char* const counted = result.perplexity ? "tokens" : "records";
  const char* const name = result.perplexity ? "perplexity" : "accuracy";
  const double score = result.perplexity ? *result.perplexity : result.accuracy.value_or(0);
  if (!arguments.json) {
    fmt::print("loss {:.6f}  {} {:.4f}  on {} {}\n", result.loss, name, score, result.labels,
               counted);
    return;
  }
  const nlohmann::ordered_json json = {
      {"loss", result.loss}, {name, score}, {counted, result.labels}};
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
  std::unique_ptr<data::TrainingData> data;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<ModelWeights> weights;
  Together(ranks->comm(), [&] {
    model = ModelOnMeta(arguments.model, /*num_labels=*/0);
    files::TokenFile file = files::TokenFile::Open(fs, arguments.eval);
    CheckTask(*model, arguments.model, file);
    data = DataFor(std::move(file), *model, {arguments.max_length, arguments.sequence_length, 0},
                   /*seed=*/std::nullopt);
    weights = std::make_unique<ModelWeights>(files::WeightFiles::Open(fs, arguments.model), *model,
                                             std::vector<std::string>{}, /*seed=*/0);
    if (!weights->new_parameters().empty()) {
      throw ConfigError(fmt::format("{}: has no weights for {}", arguments.model,
                                    weights->new_parameters().front()),
                        "train the model first: ullage train");
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
  options.cuda = arguments.cuda;
  options.weights = weights.get();
  Engine engine(NamedParameters(model->module()), settings, ranks, options);
  data::LoaderOptions loader;
  loader.rank = ranks->rank();
  loader.world_size = ranks->world_size();
  loader.padding.max_positions = model->max_positions();
  const EvaluationResult result =
      Evaluate(*model, *data, arguments.batch, loader, ranks->comm(), DeviceFor(arguments.cuda));
  if (ranks->rank() == 0) Print(arguments, result);
  return 0;
}

}  // namespace ullage::cli
