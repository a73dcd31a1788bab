#include "data/dataset.h"

#include <algorithm>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::data {

Dataset Dataset::Open(files::FileSystem& fs, const std::string& path, std::int64_t max_length) {
  if (max_length != 0 && max_length < 2) {
    throw ConfigError(fmt::format("--max-length {} keeps nothing of a text", max_length),
                      "use 2 or more, or 0 to cut nothing");
  }
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
  if (limits.vocab_size > 0) CheckTokenIds(limits.vocab_size);
}

void Dataset::CheckTokenIds(std::int64_t vocab_size) const {
  const auto refuse = [&](std::int64_t id, const std::string& where) {
    throw ConfigError(
        fmt::format("{}: {} is {}, the model's vocabulary has {} entries", path(), where, id,
                    vocab_size),
        "make the file with this model's own tokenizer (ullage-prepare --tokenizer MODEL_DIR)");
  };
  if (info().pad_token_id >= vocab_size) refuse(info().pad_token_id, "pad_token_id");
  constexpr std::int64_t kPiece = 1 << 18;  // 1 MiB of ids
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kPiece, file_.tokens())));
  for (std::int64_t begin = 0; begin < file_.tokens(); begin += kPiece) {
    const std::int64_t count = std::min(kPiece, file_.tokens() - begin);
    file_.ReadTokens(begin, count, ids.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(i)];
      if (id >= 0 && id < vocab_size) continue;
      const std::int64_t record = RecordOfToken(begin + i);
      refuse(id, fmt::format("record {}: token {}", record, begin + i - file_.Begin(record)));
    }
  }
}

std::int64_t Dataset::RecordOfToken(std::int64_t token) const {
  std::int64_t low = 0;  // Begin(low) <= token < Begin(high)
  std::int64_t high = records();
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (file_.Begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace ullage::data
