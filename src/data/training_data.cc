#include "data/training_data.h"

#include <utility>

#include "data/dataset.h"
#include "data/packed_dataset.h"

namespace ullage::data {

std::unique_ptr<TrainingData> MakeTrainingData(files::TokenFile file, const DataOptions& options) {
  if (file.info().task == files::TokenTask::kClassification) {
    return std::make_unique<Dataset>(std::move(file), options.max_length);
  }
  return std::make_unique<PackedDataset>(std::move(file), options.sequence_length,
                                         options.shuffle_seed);
}

std::vector<std::int64_t> Lengths(const TrainingData& data) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(data.records()));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = data.Length(static_cast<std::int64_t>(i));
  }
  return lengths;
}

}  // namespace ullage::data
