// Everything that a training needs before its engine exists, made and checked.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/model_directory.h"
#include "cli/model_weights.h"
#include "cli/run_state.h"
#include "data/sampler.h"
#include "data/training_data.h"
#include "files/file_system.h"
#include "models/model.h"
#include "ullage/settings.h"

namespace ullage::cli {

// Fills in what follows from the ranks, so that the printed settings are numbers, and marks it as
// derived. Throws as Settings::ResolveBatchSizes does.
BatchSizes ResolveBatches(Settings& settings, int world_size);

// The model of a directory without memory for its weights; num_labels 0 keeps the directory's own.
std::unique_ptr<models::Model> ModelOnMeta(const std::string& directory, int num_labels);

data::ModelLimits LimitsOf(const models::Model& model);

struct TrainSetup {
  // `resume_path`: the checkpoint to go on from. Throws ConfigError when the data or the settings
  // do not go on where it ended.
  TrainSetup(files::FileSystem& fs, const TrainArguments& arguments, const Settings& given,
             int world_size, const std::optional<std::string>& resume_path);

  Settings settings;
  BatchSizes batch_sizes;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<data::TrainingData> train;
  std::unique_ptr<data::TrainingData> eval;  // null: none
  std::vector<NamedShape> parameters;
  std::unique_ptr<ModelWeights> weights;  // null when a checkpoint brings all values
  std::optional<data::Sampler> sampler;
  DataIdentity data_identity;
  std::optional<ResumePoint> resume;
  std::int64_t steps_per_epoch = 0;
  std::int64_t total_steps = 0;

  // What a run begins with saying, for one rank of `world_size`.
  std::vector<std::string> Lines(int world_size) const;
};

}  // namespace ullage::cli
