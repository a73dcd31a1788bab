#include "data/dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "data/vocabulary_check.h"
#include "ullage/error.h"

namespace ullage::data {

Dataset::Dataset(files::TokenFile file, std::int64_t max_length)
    : file_(std::move(file)), max_length_(max_length) {
  if (max_length != 0 && max_length < 2) {
    throw ConfigError(fmt::format("--max-length {} keeps nothing of a text", max_length),
                      "use 2 or more, or 0 to cut nothing");
  }
  if (task() != files::TokenTask::kClassification) {
    throw ConfigError(
        fmt::format("{}: is a {} file, not one of labelled texts", path(), files::Name(task())),
        "make it with ullage-prepare --task classify");
  }
}

Dataset Dataset::Open(files::FileSystem& fs, const std::string& path, std::int64_t max_length) {
  return Dataset(files::TokenFile::Open(fs, path), max_length);
}

std::int64_t Dataset::Length(std::int64_t record) const {
  const std::int64_t length = file_.Length(record);
  return max_length_ == 0 ? length : std::min(length, max_length_);
}

void Dataset::ReadTokens(std::int64_t record, std::int32_t* out) const {
  const std::int64_t length = Length(record);
  file_.ReadTokens(file_.Begin(record), length, out);
  if (length < file_.Length(record)) {
    file_.ReadTokens(file_.Begin(record + 1) - 1, 1, out + length - 1);
  }
}

std::int64_t Dataset::truncated_records() const {
  std::int64_t count = 0;
  for (std::int64_t record = 0; record < records(); ++record) {
    count += Length(record) < file_.Length(record) ? 1 : 0;
  }
  return count;
}

void Dataset::CheckFor(const ModelLimits& limits) const {
  if (records() == 0) {
    throw ConfigError(path() + ": holds no records", "name a file with at least one record");
  }
  bool labelled = false;
  for (std::int64_t record = 0; record < records(); ++record) {
    const std::int64_t label = Label(record);
    labelled = labelled || label != files::kIgnoredLabel;
    if (limits.num_labels > 0 && label >= limits.num_labels) {
      throw ConfigError(fmt::format("{}: record {} has label {}, the model has {} labels", path(),
                                    record, label, limits.num_labels),
                        "set num_labels of the model to that of the data, or correct the data");
    }
    const std::int64_t length = Length(record);
    if (limits.max_positions > 0 && length > limits.max_positions) {
      throw ConfigError(fmt::format("{}: record {} has {} tokens, the model takes at most {}",
                                    path(), record, length, limits.max_positions),
                        fmt::format("truncate with --max-length {}", limits.max_positions));
    }
  }
  if (!labelled) {
    throw ConfigError(fmt::format("{}: every record has the label {}, which counts nowhere", path(),
                                  files::kIgnoredLabel),
                      "give at least one record a label");
  }
  if (limits.vocab_size > 0) CheckVocabulary(file_, limits.vocab_size);
}

Batch Dataset::MakeBatch(std::span<const std::int64_t> records,
                         const PaddingOptions& padding) const {
  std::int64_t longest = 1;
  for (const std::int64_t record : records) longest = std::max(longest, Length(record));
  std::int64_t width =
      (longest + padding.multiple_of - 1) / padding.multiple_of * padding.multiple_of;
  if (padding.max_positions > 0) width = std::max(longest, std::min(width, padding.max_positions));

  Batch batch;
  batch.records = static_cast<std::int64_t>(records.size());
  batch.input_ids = at::empty({batch.records, width}, at::kLong);
  batch.attention_mask = at::empty({batch.records, width}, at::kLong);
  batch.labels = at::empty({batch.records}, at::kLong);
  auto* ids = batch.input_ids.mutable_data_ptr<std::int64_t>();
  auto* mask = batch.attention_mask.mutable_data_ptr<std::int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(longest));
  for (const std::int64_t record : records) {
    const std::int64_t length = Length(record);
    ReadTokens(record, tokens.data());
    std::copy_n(tokens.begin(), length, ids);
    std::fill(ids + length, ids + width, info().pad_token_id);
    std::fill(mask, mask + length, 1);
    std::fill(mask + length, mask + width, 0);
    ids += width;
    mask += width;
    *labels++ = Label(record);
    batch.real_tokens += length;
  }
  batch.padded_tokens = batch.records * width - batch.real_tokens;
  return batch;
}

std::int64_t Dataset::CountValidLabels(std::span<const std::int64_t> records) const {
  return std::count_if(records.begin(), records.end(), [this](std::int64_t record) {
    return Label(record) != files::kIgnoredLabel;
  });
}

std::string Dataset::Describe() const {
  std::vector<std::int64_t> lengths = Lengths(*this);
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += length;
  std::ranges::sort(lengths);
  return fmt::format("{}: {} records, {} tokens, lengths {} to {}, median {}; {} cut", path(),
                     lengths.size(), tokens, lengths.front(), lengths.back(),
                     lengths[lengths.size() / 2], truncated_records());
}

}  // namespace ullage::data
