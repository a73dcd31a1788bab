#include "cli/setup.h"

#include <c10/core/Device.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/output_directory.h"
#include "data/loader.h"
#include "ullage/error.h"

namespace ullage::cli {

BatchSizes ResolveBatches(Settings& settings, int world_size) {
  const BatchSizes sizes = settings.ResolveBatchSizes(world_size);
  const auto fill = [&](const char* key, std::optional<std::int64_t>& field, std::int64_t value) {
    if (!field) settings.set_by.emplace(key, "derived");
    field = value;
  };
  fill("train_batch_size", settings.train_batch_size, sizes.train_batch);
  fill("train_micro_batch_size_per_gpu", settings.train_micro_batch_size_per_gpu,
       sizes.micro_batch);
  fill("gradient_accumulation_steps", settings.gradient_accumulation_steps,
       sizes.accumulation_steps);
  return sizes;
}

std::unique_ptr<models::Model> ModelOnMeta(const std::string& directory, int num_labels) {
  return models::MakeModel(directory + "/config.json", num_labels, c10::Device(c10::kMeta));
}

data::ModelLimits LimitsOf(const models::Model& model) {
  return {model.vocab_size(), model.max_positions(), model.num_labels()};
}

std::string Describe(const data::Dataset& dataset) {
  std::vector<std::int64_t> lengths = data::Lengths(dataset);
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += length;
  std::ranges::sort(lengths);
  return fmt::format("{}: {} records, {} tokens, lengths {} to {}, median {}; {} cut",
                     dataset.path(), lengths.size(), tokens, lengths.front(), lengths.back(),
                     lengths[lengths.size() / 2], dataset.truncated_records());
}

TrainSetup::TrainSetup(files::FileSystem& fs, const TrainArguments& arguments,
                       const Settings& given, int world_size)
    : settings(given),
      batch_sizes(ResolveBatches(settings, world_size)),
      train(data::Dataset::Open(fs, arguments.train, arguments.max_length)) {
  CheckOutput(fs, arguments.output, arguments.model);
  if (!arguments.report.empty()) CheckFileToWrite(fs, arguments.report, "--report");
  const std::int64_t labels = arguments.num_labels > 0
                                  ? arguments.num_labels
                                  : std::max<std::int64_t>(0, train.info().num_labels);
  model = ModelOnMeta(arguments.model, static_cast<int>(std::min<std::int64_t>(
                                           labels, std::numeric_limits<int>::max())));
  parameters = DistinctParameters(*model);
  train.CheckFor(LimitsOf(*model));
  if (!arguments.eval.empty()) {
    eval = data::Dataset::Open(fs, arguments.eval, arguments.max_length);
    eval->CheckFor(LimitsOf(*model));
  }
  data::SamplerOptions options;
  options.train_batch = batch_sizes.train_batch;
  options.micro_batch = batch_sizes.micro_batch;
  options.seed = arguments.seed;
  options.group_by_length = arguments.group_by_length;
  options.drop_last = settings.dataloader_drop_last;
  sampler.emplace(data::Lengths(train), options);
  steps_per_epoch = sampler->steps_per_epoch();
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / steps_per_epoch;
  total_steps =
      arguments.steps > 0 ? arguments.steps : std::min(arguments.epochs, most) * steps_per_epoch;
  weights = std::make_unique<ModelWeights>(files::WeightFiles::Open(fs, arguments.model), *model,
                                           arguments.allow_missing, arguments.seed);
}

std::vector<std::string> TrainSetup::Lines(int world_size) const {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("model: {}, {} classes, {} positions", model->family(),
                              model->num_labels(), model->max_positions()));
  for (const std::string& line : weights->Lines()) lines.push_back(line);
  lines.push_back("train " + Describe(train));
  if (eval) lines.push_back("eval " + Describe(*eval));
  lines.push_back(fmt::format(
      "{} steps of {} records ({} in a forward x {} accumulation steps x {} ranks); an epoch has "
      "{} steps",
      total_steps, batch_sizes.train_batch, batch_sizes.micro_batch, batch_sizes.accumulation_steps,
      world_size, steps_per_epoch));
  return lines;
}

}  // namespace ullage::cli
