#include "cli/setup.h"

#include <c10/core/Device.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "cli/data_choice.h"
#include "cli/output_directory.h"
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
  files::PosixFileSystem fs;
  if (!fs.Stat(directory + "/config.json")) files::RefuseOwnCheckpoint(fs, directory);
  return models::MakeModel(directory + "/config.json", num_labels, c10::Device(c10::kMeta));
}

data::ModelLimits LimitsOf(const models::Model& model) {
  return {model.vocab_size(), model.max_positions(), model.num_labels()};
}

TrainSetup::TrainSetup(files::FileSystem& fs, const TrainArguments& arguments,
                       const Settings& given, int world_size,
                       const std::optional<std::string>& resume_path)
    : settings(given), batch_sizes(ResolveBatches(settings, world_size)) {
  if (resume_path) resume = ReadResumePoint(fs, *resume_path, settings.load_universal);
  files::TokenFile train_file = files::TokenFile::Open(fs, arguments.train);
  CheckOutput(fs, arguments.output, arguments.model);
  if (!arguments.report.empty()) CheckFileToWrite(fs, arguments.report, "--report");
  const int saved_labels = resume ? resume->state.num_labels : 0;
  model = ModelForFile(arguments.model, train_file,
                       arguments.num_labels > 0 ? arguments.num_labels : saved_labels);
  parameters = DistinctParameters(*model);
  const DataWords words{arguments.max_length, arguments.sequence_length,
                        arguments.pad_to_multiple_of};
  train = DataFor(std::move(train_file), *model, words, arguments.seed);
  if (!arguments.eval.empty()) {
    files::TokenFile eval_file = files::TokenFile::Open(fs, arguments.eval);
    CheckTask(*model, arguments.model, eval_file);
    eval = DataFor(std::move(eval_file), *model, words, std::nullopt);
  }
  if (train->task() != files::TokenTask::kClassification &&
      batch_sizes.train_batch > train->records()) {
    throw ConfigError(fmt::format("train_batch_size {} is larger than the data: {}",
                                  batch_sizes.train_batch, train->Describe()),
                      fmt::format("a batch counts rows: use a train_batch_size of at most {}, or a "
                                  "shorter --sequence-length",
                                  train->records()));
  }
  data::SamplerOptions options;
  options.train_batch = batch_sizes.train_batch;
  options.micro_batch = batch_sizes.micro_batch;
  options.seed = arguments.seed;
  // Rows of packed documents have one length.
  options.group_by_length =
      arguments.group_by_length && model->task() == models::Task::kClassification;
  options.drop_last = settings.dataloader_drop_last;
  const std::vector<std::int64_t> lengths = data::Lengths(*train);
  if (resume && options.train_batch == resume->state.data.train_batch) {
    options.order_batch = resume->state.data.order_batch;
  }
  sampler.emplace(lengths, options);
  data_identity = IdentityOf(*sampler, lengths);
  steps_per_epoch = sampler->steps_per_epoch();
  if (resume && resume->is_foreign) {
    resume->state.position = sampler->After(resume->steps);
  } else if (resume) {
    CheckSameData(resume->state.data, data_identity, resume->path);
  }
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / steps_per_epoch;
  total_steps =
      arguments.steps > 0 ? arguments.steps : std::min(arguments.epochs, most) * steps_per_epoch;
  if (resume) return;
  weights = std::make_unique<ModelWeights>(files::WeightFiles::Open(fs, arguments.model), *model,
                                           arguments.allow_missing, arguments.seed);
}

std::vector<std::string> TrainSetup::Lines(int world_size) const {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("model: {}, {}, {} positions", model->family(),
                              model->task() == models::Task::kClassification
                                  ? fmt::format("{} classes", model->num_labels())
                                  : fmt::format("vocabulary of {}", model->vocab_size()),
                              model->max_positions()));
  if (weights) {
    for (const std::string& line : weights->Lines()) lines.push_back(line);
  }
  if (resume) {
    lines.push_back(fmt::format("resuming from {}: {} steps done, on {} ranks then", resume->path,
                                resume->steps, resume->world_size));
    if (resume->is_foreign) {
      lines.push_back(fmt::format(
          "DeepSpeed wrote it and says nothing of the data: step {} of epoch {} comes next, in the "
          "order of this seed, so records of that epoch may come twice or not at all",
          resume->state.position.step + 1, resume->state.position.epoch + 1));
    }
  }
  lines.push_back("train " + train->Describe());
  if (eval) lines.push_back("eval " + eval->Describe());
  lines.push_back(fmt::format(
      "{} steps of {} records ({} in a forward x {} accumulation steps x {} ranks); an epoch has "
      "{} steps",
      total_steps, batch_sizes.train_batch, batch_sizes.micro_batch, batch_sizes.accumulation_steps,
      world_size, steps_per_epoch));
  return lines;
}

}  // namespace ullage::cli
