// Which tokens of which documents stand in each row of packed data: arithmetic on lengths alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ullage::data {

// How documents are laid into rows of `sequence_length` tokens. Every token has exactly one place.
enum class PackingRule : std::uint8_t {
  // One after the other, cut wherever a row is full: only the last row has padding.
  kCut,
  // Each into the first row with room for it, so that none is cut; among kOpenRows rows, of which
  // the fullest is given up when another must be begun. Only what is longer than a row is cut, into
  // full rows and a rest that is laid like a document.
  kWhole,
};

struct PackingOptions {
  PackingRule rule = PackingRule::kCut;
  std::int64_t sequence_length = 0;           // tokens in a row, from 1
  std::optional<std::uint64_t> shuffle_seed;  // of the documents' order; none: that of the file
};

// Consecutive tokens of one document.
struct Piece {
  std::int64_t begin = 0;  // in the whole file
  std::int64_t tokens = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// The rows of a data set: a pure function of its documents and the options. 16 bytes a piece.
class Packing {
 public:
  static constexpr std::size_t kOpenRows = 256;

  // Document i has the tokens offsets[i] to offsets[i + 1] - 1.
  Packing(std::span<const std::int64_t> offsets, const PackingOptions& options);

  std::int64_t rows() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  // From left to right; what they leave of the row is padding.
  std::span<const Piece> Row(std::int64_t row) const;
  std::int64_t cut_documents() const { return cut_documents_; }

 private:
  void Cut(std::span<const std::int64_t> offsets, std::span<const std::int64_t> order,
           std::int64_t sequence_length);
  void KeepWhole(std::span<const std::int64_t> offsets, std::span<const std::int64_t> order,
                 std::int64_t sequence_length);

  std::vector<Piece> pieces_;         // of all rows
  std::vector<std::int64_t> begins_;  // of each row among the pieces, and the end
  std::int64_t cut_documents_ = 0;
};

}  // namespace ullage::data
