// Documents of a causal or instruction file, packed into rows of one length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/packing.h"
#include "data/training_data.h"
#include "files/token_file.h"

namespace ullage::data {

// A record is a row. Documents are laid into rows once, in an order shuffled by the seed; epochs
// differ in the order of the rows (Sampler). That changes nothing for a document: it sees none of
// the others in its row, and its positions count from 0. Causal documents are cut where a row ends,
// those of an instruction file are kept whole where they fit into a row (packing.h). What is cut
// goes on in another row as a document of its own.
//
// Labels stand in each token's own place; the model predicts each from the tokens before it. So the
// first token of a document, and of what goes on in another row, has no label.
class PackedDataset final : public TrainingData {
 public:
  // Reads the labels of an instruction file, to count them. Throws ConfigError for a
  // sequence_length below 2 and for a classification file, IoError when the file cannot be read.
  PackedDataset(files::TokenFile file, std::int64_t sequence_length,
                std::optional<std::uint64_t> shuffle_seed);

  const files::TokenFile& file() const override { return file_; }
  std::int64_t records() const override { return packing_.rows(); }
  std::int64_t Length(std::int64_t record) const override;
  std::int64_t CountValidLabels(std::span<const std::int64_t> records) const override;
  Batch MakeBatch(std::span<const std::int64_t> records,
                  const PaddingOptions& padding) const override;
  void CheckFor(const ModelLimits& limits) const override;
  std::string Describe() const override;

  std::int64_t sequence_length() const { return sequence_length_; }

 private:
  void CountLabels();
  // Labels of a piece; `ids` are its tokens.
  void ReadLabels(const Piece& piece, const std::int32_t* ids, std::int32_t* out) const;

  files::TokenFile file_;
  std::int64_t sequence_length_;
  Packing packing_;
  std::vector<std::int64_t> valid_labels_;  // of each row
};

}  // namespace ullage::data
