// The data that a command works on, by the task of its token file, fitted to the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/training_data.h"
#include "files/token_file.h"
#include "models/model.h"

namespace ullage::cli {

inline constexpr std::int64_t kUsualSequenceLength = 1024;

// What the command line says about the data; 0: not given.
struct DataWords {
  std::int64_t max_length = 0;
  std::int64_t sequence_length = 0;
  std::int64_t pad_to_multiple_of = 0;
};

// The model of a directory without memory for its weights, with the classes that the file has, or
// `num_labels` of them if that is above 0. Throws ConfigError that names both when the file is for
// another task than the model.
std::unique_ptr<models::Model> ModelForFile(const std::string& directory,
                                            const files::TokenFile& file, int num_labels);

// Throws as above.
void CheckTask(const models::Model& model, const std::string& directory,
               const files::TokenFile& file);

// The records, checked against the model. Documents are packed into rows of `sequence_length`
// tokens, by default kUsualSequenceLength or the model's positions if fewer, in an order shuffled
// by `seed` or that of the file. Throws ConfigError for words that say nothing about such a file,
// and as data::TrainingData::CheckFor.
std::unique_ptr<data::TrainingData> DataFor(files::TokenFile file, const models::Model& model,
                                            const DataWords& words,
                                            std::optional<std::uint64_t> seed);

// kUsualSequenceLength, or the model's positions if fewer.
std::int64_t UsualSequenceLength(const models::Model& model);

}  // namespace ullage::cli
