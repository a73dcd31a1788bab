// Token files: texts as token ids, as ullage-prepare writes them.
//
// A safetensors file with
//   input_ids  I32 [tokens]       the records' tokens, one after the other
//   offsets    I64 [records + 1]  where each begins; from 0, strictly rising, the last is `tokens`
// the metadata format = "ullage-tokens", version = "1", tokenizer, tokenizer_sha256, pad_token_id,
// and by the metadata `task`
//   (absent)   labels I64 [records], 0 .. num_labels - 1, or -100: counts nowhere; and the metadata
//              num_labels and label_names (a JSON list of strings, empty when labels are numbers)
//   "causal"   no labels: every token of a document is to be predicted from those before it
//   "instruct" labels I32 [tokens]: in each token's own place the token id to be predicted there,
//   or
//              -100 for the tokens of a prompt
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::files {

inline constexpr std::int64_t kIgnoredLabel = -100;

enum class TokenTask : std::uint8_t {
  kClassification,  // one label for each record
  kCausal,          // every token is a label
  kInstruct,        // a label for each token
};

// "classification", "causal", "instruct"
const char* Name(TokenTask task);

struct TokenFileInfo {
  TokenTask task = TokenTask::kClassification;
  std::string tokenizer;         // its name, for people
  std::string tokenizer_sha256;  // of its tokenizer.json
  std::int64_t pad_token_id = 0;
  std::int64_t num_labels = 0;           // classification only, else 0
  std::vector<std::string> label_names;  // num_labels of them, or none
};

// Keeps offsets and the records' labels in memory, 8 bytes a record for each; what there is of
// every token stays in the file.
class TokenFile {
 public:
  // Checks everything but the token ids and the tokens' labels, of which only the reader knows the
  // vocabulary. Throws IoError that names the file and the record. `fs` is not used after the call.
  static TokenFile Open(FileSystem& fs, const std::string& path);

  const std::string& path() const { return file_.path(); }
  const TokenFileInfo& info() const { return info_; }
  std::int64_t records() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t tokens() const { return offsets_.back(); }
  std::span<const std::int64_t> offsets() const { return offsets_; }  // records() + 1

  // Of record 0 .. records() - 1. Any thread.
  std::int64_t Begin(std::int64_t record) const {
    return offsets_[static_cast<std::size_t>(record)];
  }
  std::int64_t Length(std::int64_t record) const { return Begin(record + 1) - Begin(record); }
  // Classification only.
  std::int64_t Label(std::int64_t record) const {
    return labels_[static_cast<std::size_t>(record)];
  }

  // Token ids first .. first + count - 1 of the whole file. Any thread.
  void ReadTokens(std::int64_t first, std::int64_t count, std::int32_t* out) const;
  // Their labels. Instruct only.
  void ReadTokenLabels(std::int64_t first, std::int64_t count, std::int32_t* out) const;

  // The record that holds the token 0 .. tokens() - 1.
  std::int64_t RecordOfToken(std::int64_t token) const;

 private:
  explicit TokenFile(SafetensorsFile file) : file_(std::move(file)) {}

  void CheckOffsets(std::int64_t tokens_in_file) const;
  void CheckRecordLabels() const;

  SafetensorsFile file_;
  TokenFileInfo info_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> labels_;  // of the records; classification only
};

}  // namespace ullage::files
