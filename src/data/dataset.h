// The records of a token file as a model takes them: checked against the model, truncated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/token_file.h"

namespace ullage::data {

// What the model can take; 0 for a limit that it does not have.
struct ModelLimits {
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;  // tokens in one sequence
  std::int64_t num_labels = 0;
};

class Dataset {
 public:
  // `max_length`: records with more tokens are cut to it, 0 cuts none. What is kept is the first
  // max_length - 1 tokens and the last one, which for tokenizers that end a text by a special
  // token ([SEP], </s>) is what Hugging Face's truncation of one text keeps. Pairs of texts are
  // cut in ullage-prepare, which knows where the second begins. Throws ConfigError for a
  // max_length below 2, IoError for the file. `fs` is not used after the call.
  static Dataset Open(files::FileSystem& fs, const std::string& path, std::int64_t max_length = 0);

  const std::string& path() const { return file_.path(); }
  const files::TokenFileInfo& info() const { return file_.info(); }
  std::int64_t records() const { return file_.records(); }

  // To be called before the first step; reads the whole file once, a piece at a time. Throws
  // ConfigError that names the record: a token id outside the vocabulary, a label the model has no
  // output for, a record longer than the model's positions after truncation; no record at all, or
  // none with a label.
  void CheckFor(const ModelLimits& limits) const;

  // Of record 0 .. records() - 1, after truncation. Any thread.
  std::int64_t Length(std::int64_t record) const;
  std::int64_t Label(std::int64_t record) const { return file_.Label(record); }
  // Writes Length(record) token ids.
  void ReadTokens(std::int64_t record, std::int32_t* out) const;

  std::int64_t truncated_records() const;  // how many are cut

 private:
  Dataset(files::TokenFile file, std::int64_t max_length)
      : file_(std::move(file)), max_length_(max_length) {}

  void CheckTokenIds(std::int64_t vocab_size) const;
  std::int64_t RecordOfToken(std::int64_t token) const;

  files::TokenFile file_;
  std::int64_t max_length_;
};

}  // namespace ullage::data
