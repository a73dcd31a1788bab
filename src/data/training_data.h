// What loaders make batches of, whatever the task: records in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "files/token_file.h"

namespace ullage::data {

// What the model can take; 0 for a limit that it does not have.
struct ModelLimits {
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;  // tokens in one sequence
  std::int64_t num_labels = 0;     // classes
};

// The records of a classification file, or rows of packed documents. Any thread.
class TrainingData {
 public:
  virtual ~TrainingData() = default;

  virtual const files::TokenFile& file() const = 0;
  const std::string& path() const { return file().path(); }
  files::TokenTask task() const { return file().info().task; }

  virtual std::int64_t records() const = 0;
  // Tokens of record 0 .. records() - 1 that are no padding.
  virtual std::int64_t Length(std::int64_t record) const = 0;
  // Labels other than -100 among the records.
  virtual std::int64_t CountValidLabels(std::span<const std::int64_t> records) const = 0;

  // Reads the records and makes the tensors; position, micro_batch and step_valid_labels are the
  // caller's. Packed rows have a length of their own, which `padding` does not change. Throws
  // IoError when the file cannot be read.
  virtual Batch MakeBatch(std::span<const std::int64_t> records,
                          const PaddingOptions& padding) const = 0;

  // To be called before the first step; reads the whole file once, a piece at a time. Throws
  // ConfigError that names the record of the file: a token id outside the vocabulary, a label the
  // model has no output for, more tokens than the model's positions; no record at all, or none with
  // a label.
  virtual void CheckFor(const ModelLimits& limits) const = 0;

  // One line about its size, for people.
  virtual std::string Describe() const = 0;
};

struct DataOptions {
  std::int64_t max_length = 0;       // classification: records are cut to this; 0 cuts none
  std::int64_t sequence_length = 0;  // the others: tokens in each row, from 2
  // Of the order of packing; none: that of the file.
  std::optional<std::uint64_t> shuffle_seed = std::nullopt;
};

// By the file's task: a Dataset, or a PackedDataset. Throws as they do.
std::unique_ptr<TrainingData> MakeTrainingData(files::TokenFile file, const DataOptions& options);

// Length of every record, as Sampler takes them.
std::vector<std::int64_t> Lengths(const TrainingData& data);

}  // namespace ullage::data
