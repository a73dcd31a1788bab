// Token files for the tests of data, made of lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/packed_dataset.h"
#include "files/safetensors_writer.h"

namespace testsupport {

inline constexpr std::int64_t kPad = 99;

// Token files hold `records`, their labels and labels 0 .. num_labels - 1; padding is kPad.
inline void WriteTokens(const std::string& path,
                        const std::vector<std::vector<std::int32_t>>& records,
                        const std::vector<std::int64_t>& labels, int num_labels = 2) {
  using namespace ullage::files;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;
  for (const auto& record : records) {
    ids.insert(ids.end(), record.begin(), record.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  PosixFileSystem fs;
  SafetensorsWriter writer(fs, path,
                           {{"offsets", ElementType::kI64, {size(offsets)}},
                            {"labels", ElementType::kI64, {size(labels)}},
                            {"input_ids", ElementType::kI32, {size(ids)}}},
                           {{"format", "ullage-tokens"},
                            {"version", "1"},
                            {"tokenizer", "tiny"},
                            {"tokenizer_sha256", "0"},
                            {"pad_token_id", std::to_string(kPad)},
                            {"num_labels", std::to_string(num_labels)},
                            {"label_names", "[]"}});
  writer.Append(offsets.data(), 8 * size(offsets));
  writer.Append(labels.data(), 8 * size(labels));
  writer.Append(ids.data(), 4 * size(ids));
  writer.Finish();
}

using Documents = std::vector<std::vector<std::int32_t>>;

// A causal file, or with the labels of all tokens an instruction file.
inline void WriteDocuments(const std::string& path, const Documents& documents,
                           const Documents& labels = {}) {
  using namespace ullage::files;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids, token_labels;
  for (const auto& document : documents) {
    ids.insert(ids.end(), document.begin(), document.end());
    offsets.push_back(std::ssize(ids));
  }
  for (const auto& label : labels)
    token_labels.insert(token_labels.end(), label.begin(), label.end());
  std::vector<TensorDeclaration> tensors = {{"offsets", ElementType::kI64, {std::ssize(offsets)}},
                                            {"input_ids", ElementType::kI32, {std::ssize(ids)}}};
  const bool has_labels = !labels.empty();
  if (has_labels) tensors.push_back({"labels", ElementType::kI32, {std::ssize(token_labels)}});
  PosixFileSystem fs;
  SafetensorsWriter writer(fs, path, tensors,
                           {{"format", "ullage-tokens"},
                            {"version", "1"},
                            {"task", has_labels ? "instruct" : "causal"},
                            {"tokenizer", "tiny"},
                            {"tokenizer_sha256", "0"},
                            {"pad_token_id", std::to_string(kPad)}});
  writer.Append(offsets.data(), 8 * std::ssize(offsets));
  writer.Append(ids.data(), 4 * std::ssize(ids));
  if (has_labels) writer.Append(token_labels.data(), 4 * std::ssize(token_labels));
  writer.Finish();
}

inline ullage::data::PackedDataset OpenPacked(const std::string& path, std::int64_t sequence_length,
                                              std::optional<std::uint64_t> seed = std::nullopt) {
  ullage::files::PosixFileSystem fs;
  return ullage::data::PackedDataset(ullage::files::TokenFile::Open(fs, path), sequence_length,
                                     seed);
}

// `count` records; record i has 2 + (i * 37) % 50 tokens, all of them i, and label i % 2, every
// tenth -100.
inline void WriteNumbered(const std::string& path, int count) {
  std::vector<std::vector<std::int32_t>> records;
  std::vector<std::int64_t> labels;
  for (int i = 0; i < count; ++i) {
    records.emplace_back(static_cast<std::size_t>(2 + (i * 37) % 50), i);
    labels.push_back(i % 10 == 9 ? -100 : i % 2);
  }
  WriteTokens(path, records, labels);
}

inline ullage::data::Dataset OpenData(const std::string& path, std::int64_t max_length = 0) {
  ullage::files::PosixFileSystem fs;
  return ullage::data::Dataset::Open(fs, path, max_length);
}

}  // namespace testsupport
