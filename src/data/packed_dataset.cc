#include "data/packed_dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/vocabulary_check.h"
#include "ullage/error.h"

namespace ullage::data {
namespace {

using files::kIgnoredLabel;
using files::TokenTask;

PackingOptions Options(const files::TokenFile& file, std::int64_t sequence_length,
                       std::optional<std::uint64_t> shuffle_seed) {
  if (file.info().task == TokenTask::kClassification) {
    throw ConfigError(file.path() + ": is a classification file, whose records are not packed",
                      "make it with ullage-prepare --task causal or --task instruct");
  }
  if (sequence_length < 2) {
    throw ConfigError(fmt::format("--sequence-length {} leaves nothing to predict from the tokens "
                                  "before it",
                                  sequence_length),
                      "use 2 or more");
  }
  const bool may_cut = file.info().task == TokenTask::kCausal;
  return {may_cut ? PackingRule::kCut : PackingRule::kWhole, sequence_length, shuffle_seed};
}

}  // namespace

PackedDataset::PackedDataset(files::TokenFile file, std::int64_t sequence_length,
                             std::optional<std::uint64_t> shuffle_seed)
    : file_(std::move(file)),
      sequence_length_(sequence_length),
      packing_(file_.offsets(), Options(file_, sequence_length, shuffle_seed)) {
  CountLabels();
}

void PackedDataset::CountLabels() {
  valid_labels_.assign(static_cast<std::size_t>(records()), 0);
  if (task() == TokenTask::kCausal) {
    for (std::int64_t row = 0; row < records(); ++row) {
      for (const Piece& piece : packing_.Row(row)) {
        valid_labels_[static_cast<std::size_t>(row)] += piece.tokens - 1;
      }
    }
    return;
  }
  // In the order of the file, so that it is read from one end to the other.
  std::vector<std::pair<Piece, std::int64_t>> pieces;
  for (std::int64_t row = 0; row < records(); ++row) {
    for (const Piece& piece : packing_.Row(row)) pieces.emplace_back(piece, row);
  }
  std::ranges::sort(pieces, {}, [](const auto& item) { return item.first.begin; });
  std::vector<std::int32_t> labels(static_cast<std::size_t>(sequence_length_));
  for (const auto& [piece, row] : pieces) {
    file_.ReadTokenLabels(piece.begin, piece.tokens, labels.data());
    valid_labels_[static_cast<std::size_t>(row)] +=
        std::count_if(labels.begin() + 1, labels.begin() + piece.tokens,
                      [](std::int32_t label) { return label != kIgnoredLabel; });
  }
}

std::int64_t PackedDataset::Length(std::int64_t record) const {
  std::int64_t tokens = 0;
  for (const Piece& piece : packing_.Row(record)) tokens += piece.tokens;
  return tokens;
}

std::int64_t PackedDataset::CountValidLabels(std::span<const std::int64_t> records) const {
  std::int64_t count = 0;
  for (const std::int64_t row : records) count += valid_labels_[static_cast<std::size_t>(row)];
  return count;
}

void PackedDataset::ReadLabels(const Piece& piece, const std::int32_t* ids,
                               std::int32_t* out) const {
  if (task() == TokenTask::kCausal) {
    std::copy_n(ids, piece.tokens, out);
  } else {
    file_.ReadTokenLabels(piece.begin, piece.tokens, out);
  }
  out[0] = kIgnoredLabel;
}

Batch PackedDataset::MakeBatch(std::span<const std::int64_t> records,
                               const PaddingOptions& /*padding*/) const {
  Batch batch;
  batch.records = std::ssize(records);
  const std::int64_t width = sequence_length_;
  const auto make = [&](at::ScalarType type) { return at::empty({batch.records, width}, type); };
  batch.input_ids = make(at::kLong);
  batch.labels = make(at::kLong);
  const bool is_alone = std::ranges::all_of(
      records, [this](std::int64_t row) { return packing_.Row(row).size() <= 1; });
  at::Tensor position_ids = make(at::kLong);
  at::Tensor document_ids = make(at::kInt);
  auto* ids = batch.input_ids.mutable_data_ptr<std::int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  auto* positions = position_ids.mutable_data_ptr<std::int64_t>();
  auto* documents = document_ids.mutable_data_ptr<std::int32_t>();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(width));
  std::vector<std::int32_t> token_labels(static_cast<std::size_t>(width));
  for (const std::int64_t row : records) {
    std::int32_t document = 0;
    std::int64_t room = width;
    const auto count = [&](std::int64_t length) {
      std::iota(positions, positions + length, 0);
      std::fill_n(documents, length, document++);
      ids += length;
      labels += length;
      positions += length;
      documents += length;
      room -= length;
    };
    for (const Piece& piece : packing_.Row(row)) {
      file_.ReadTokens(piece.begin, piece.tokens, tokens.data());
      ReadLabels(piece, tokens.data(), token_labels.data());
      std::copy_n(tokens.begin(), piece.tokens, ids);
      std::copy_n(token_labels.begin(), piece.tokens, labels);
      batch.real_tokens += piece.tokens;
      count(piece.tokens);
    }
    std::fill_n(ids, room, file_.info().pad_token_id);
    std::fill_n(labels, room, kIgnoredLabel);
    count(room);  // padding is a document of its own
  }
  batch.padded_tokens = batch.records * width - batch.real_tokens;
  // Without them attention needs no mask: padding stands behind all that counts.
  if (!is_alone) {
    batch.position_ids = std::move(position_ids);
    batch.document_ids = std::move(document_ids);
  }
  return batch;
}

void PackedDataset::CheckFor(const ModelLimits& limits) const {
  if (records() == 0) {
    throw ConfigError(path() + ": holds no records", "name a file with at least one record");
  }
  if (limits.max_positions > 0 && sequence_length_ > limits.max_positions) {
    throw ConfigError(
        fmt::format("{}: rows of {} tokens, the model takes at most {}", path(), sequence_length_,
                    limits.max_positions),
        fmt::format("choose a --sequence-length of at most {}", limits.max_positions));
  }
  if (std::ranges::all_of(valid_labels_, [](std::int64_t count) { return count == 0; })) {
    throw ConfigError(
        fmt::format("{}: no token has a label: records need a token before one that counts",
                    path()),
        "make the file from longer texts, or with responses");
  }
  if (limits.vocab_size > 0) CheckVocabulary(file_, limits.vocab_size);
}

std::string PackedDataset::Describe() const {
  return fmt::format(
      "{}: {} documents, {} tokens, packed into {} rows of {}; {:.1f} % padding, {} documents cut",
      path(), file_.records(), file_.tokens(), records(), sequence_length_,
      100 * PaddingShare(file_.tokens(), records() * sequence_length_ - file_.tokens()),
      packing_.cut_documents());
}

}  // namespace ullage::data
