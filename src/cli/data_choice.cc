#include "cli/data_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cli/setup.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

bool IsClassification(const files::TokenFile& file) {
  return file.info().task == files::TokenTask::kClassification;
}

void Refuse(const char* option, std::int64_t value, const files::TokenFile& file,
            const char* hint) {
  if (value == 0) return;
  throw ConfigError(fmt::format("{} {}: says nothing about {}, a {} file", option, value,
                                file.path(), files::Name(file.info().task)),
                    hint);
}

}  // namespace

void CheckTask(const models::Model& model, const std::string& directory,
               const files::TokenFile& file) {
  const bool classifies = model.task() == models::Task::kClassification;
  if (classifies == IsClassification(file)) return;
  throw ConfigError(
      fmt::format("{} is a {} file, {} is a model of type \"{}\", {}", file.path(),
                  files::Name(file.info().task), directory, model.family(),
                  classifies ? "which classifies texts" : "which predicts the next token"),
      classifies ? "make the file with ullage-prepare --task classify, or name a language model"
                 : "make the file with ullage-prepare --task causal or instruct, or name a "
                   "classifier");
}

std::unique_ptr<models::Model> ModelForFile(const std::string& directory,
                                            const files::TokenFile& file, int num_labels) {
  if (!IsClassification(file)) {
    Refuse("--num-labels", num_labels, file, "leave it out: a language model has no classes");
    auto model = ModelOnMeta(directory, /*num_labels=*/0);
    CheckTask(*model, directory, file);
    return model;
  }
  const std::int64_t classes = num_labels > 0 ? num_labels : file.info().num_labels;
  try {
    return ModelOnMeta(directory, static_cast<int>(std::min<std::int64_t>(
                                      classes, std::numeric_limits<int>::max())));
  } catch (const ConfigError&) {
    // A language model takes no classes; then it is the file that does not fit.
    CheckTask(*ModelOnMeta(directory, /*num_labels=*/0), directory, file);
    throw;
  }
}

std::unique_ptr<data::TrainingData> DataFor(files::TokenFile file, const models::Model& model,
                                            const DataWords& words,
                                            std::optional<std::uint64_t> seed) {
  if (IsClassification(file)) {
    Refuse("--sequence-length", words.sequence_length, file,
           "records are padded to the longest in a batch; --max-length cuts them");
  } else {
    Refuse("--max-length", words.max_length, file,
           "documents are packed into rows of --sequence-length tokens");
    Refuse("--pad-to-multiple-of", words.pad_to_multiple_of, file,
           "rows have --sequence-length tokens");
  }
  data::DataOptions options;
  options.max_length = words.max_length;
  options.sequence_length =
      words.sequence_length > 0 ? words.sequence_length : UsualSequenceLength(model);
  options.shuffle_seed = seed;
  auto data = data::MakeTrainingData(std::move(file), options);
  data->CheckFor(LimitsOf(model));
  return data;
}

std::int64_t UsualSequenceLength(const models::Model& model) {
  return std::min(kUsualSequenceLength, model.max_positions());
}

}  // namespace ullage::cli
