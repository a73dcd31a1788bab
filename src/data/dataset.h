// The records of a classification file as a model takes them: checked against the model, truncated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "data/training_data.h"
#include "files/file_system.h"
#include "files/token_file.h"

namespace ullage::data {

class Dataset final : public TrainingData {
 public:
  // `max_length`: records with more tokens are cut to it, 0 cuts none. What is kept is the first
  // max_length - 1 tokens and the last one, which for tokenizers that end a text by a special
  // token ([SEP], </s>) is what Hugging Face's truncation of one text keeps. Pairs of texts are
  // cut in ullage-prepare, which knows where the second begins. Throws ConfigError for a
  // max_length below 2 and for a file of another task.
  explicit Dataset(files::TokenFile file, std::int64_t max_length = 0);
  // The same from a path. Throws IoError for the file. `fs` is not used after the call.
  static Dataset Open(files::FileSystem& fs, const std::string& path, std::int64_t max_length = 0);

  const files::TokenFile& file() const override { return file_; }
  const files::TokenFileInfo& info() const { return file_.info(); }
  std::int64_t records() const override { return file_.records(); }
  std::int64_t Length(std::int64_t record) const override;
  std::int64_t Label(std::int64_t record) const { return file_.Label(record); }
  std::int64_t CountValidLabels(std::span<const std::int64_t> records) const override;
  // Padded to the longest of the records.
  Batch MakeBatch(std::span<const std::int64_t> records,
                  const PaddingOptions& padding) const override;
  void CheckFor(const ModelLimits& limits) const override;
  std::string Describe() const override;

  // Writes Length(record) token ids. Any thread.
  void ReadTokens(std::int64_t record, std::int32_t* out) const;

  std::int64_t truncated_records() const;  // how many are cut

 private:
  files::TokenFile file_;
  std::int64_t max_length_;
};

}  // namespace ullage::data
