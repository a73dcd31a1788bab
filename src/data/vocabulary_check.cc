#include "data/vocabulary_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ullage/error.h"

namespace ullage::data {
namespace {

constexpr std::int64_t kPiece = 1 << 18;  // 1 MiB of ids

}  // namespace

void CheckVocabulary(const files::TokenFile& file, std::int64_t vocab_size) {
  const auto refuse = [&](std::int64_t id, const std::string& where) {
    throw ConfigError(
        fmt::format("{}: {} is {}, the model's vocabulary has {} entries", file.path(), where, id,
                    vocab_size),
        "make the file with this model's own tokenizer (ullage-prepare --tokenizer MODEL_DIR)");
  };
  const auto refuse_token = [&](std::int64_t id, std::int64_t token, const char* what) {
    const std::int64_t record = file.RecordOfToken(token);
    refuse(id, fmt::format("record {}: {} {}", record, what, token - file.Begin(record)));
  };
  if (file.info().pad_token_id >= vocab_size) refuse(file.info().pad_token_id, "pad_token_id");
  const bool has_labels = file.info().task == files::TokenTask::kInstruct;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kPiece, file.tokens())));
  for (std::int64_t begin = 0; begin < file.tokens(); begin += kPiece) {
    const std::int64_t count = std::min(kPiece, file.tokens() - begin);
    file.ReadTokens(begin, count, ids.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(i)];
      if (id < 0 || id >= vocab_size) refuse_token(id, begin + i, "token");
    }
    if (!has_labels) continue;
    file.ReadTokenLabels(begin, count, ids.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t label = ids[static_cast<std::size_t>(i)];
      if (label == files::kIgnoredLabel) continue;
      if (label < 0 || label >= vocab_size) refuse_token(label, begin + i, "the label of token");
    }
  }
}

}  // namespace ullage::data
