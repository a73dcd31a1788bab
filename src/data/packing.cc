#include "data/packing.h"

#include <algorithm>
#include <numeric>

#include "data/random.h"

namespace ullage::data {
namespace {

// A stream of random numbers that no epoch of a Sampler uses.
constexpr std::uint64_t kStream = ~std::uint64_t{0};

struct OpenRow {
  std::int64_t row = 0;
  std::int64_t room = 0;  // tokens, at least 1
};

// The rows of KeepWhole as they fill up.
class Shelves {
 public:
  explicit Shelves(std::int64_t sequence_length) : sequence_length_(sequence_length) {}

  // The row that takes `tokens`, of at most a whole row.
  std::int64_t Place(std::int64_t tokens) {
    auto found =
        std::ranges::find_if(open_, [&](const OpenRow& open) { return open.room >= tokens; });
    if (found == open_.end()) {
      if (open_.size() == Packing::kOpenRows) {
        open_.erase(std::ranges::min_element(open_, {}, &OpenRow::room));
      }
      found = open_.insert(open_.end(), OpenRow{rows_++, sequence_length_});
    }
    const std::int64_t row = found->row;
    found->room -= tokens;
    if (found->room == 0) open_.erase(found);
    return row;
  }

  std::int64_t rows() const { return rows_; }

 private:
  const std::int64_t sequence_length_;
  std::vector<OpenRow> open_;  // in the order in which they were begun
  std::int64_t rows_ = 0;
};

}  // namespace

Packing::Packing(std::span<const std::int64_t> offsets, const PackingOptions& options) {
  std::vector<std::int64_t> order(offsets.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  if (options.shuffle_seed) Random(*options.shuffle_seed, kStream).Shuffle(std::span(order));
  begins_.push_back(0);
  if (options.rule == PackingRule::kCut) {
    Cut(offsets, order, options.sequence_length);
  } else {
    KeepWhole(offsets, order, options.sequence_length);
  }
}

std::span<const Piece> Packing::Row(std::int64_t row) const {
  const auto begin = static_cast<std::size_t>(begins_[static_cast<std::size_t>(row)]);
  const auto end = static_cast<std::size_t>(begins_[static_cast<std::size_t>(row) + 1]);
  return std::span(pieces_).subspan(begin, end - begin);
}

void Packing::Cut(std::span<const std::int64_t> offsets, std::span<const std::int64_t> order,
                  std::int64_t sequence_length) {
  std::int64_t room = sequence_length;
  for (const std::int64_t document : order) {
    const auto i = static_cast<std::size_t>(document);
    if (offsets[i + 1] - offsets[i] > room) ++cut_documents_;
    for (std::int64_t begin = offsets[i]; begin < offsets[i + 1];) {
      const std::int64_t taken = std::min(room, offsets[i + 1] - begin);
      pieces_.push_back({begin, taken});
      begin += taken;
      room -= taken;
      if (room > 0) continue;
      begins_.push_back(std::ssize(pieces_));
      room = sequence_length;
    }
  }
  if (room < sequence_length) begins_.push_back(std::ssize(pieces_));
}

void Packing::KeepWhole(std::span<const std::int64_t> offsets, std::span<const std::int64_t> order,
                        std::int64_t sequence_length) {
  Shelves shelves(sequence_length);
  std::vector<Piece> placed;
  std::vector<std::int64_t> row_of;  // of each placed piece
  for (const std::int64_t document : order) {
    const auto i = static_cast<std::size_t>(document);
    if (offsets[i + 1] - offsets[i] > sequence_length) ++cut_documents_;
    for (std::int64_t begin = offsets[i]; begin < offsets[i + 1]; begin += sequence_length) {
      placed.push_back({begin, std::min(sequence_length, offsets[i + 1] - begin)});
      row_of.push_back(shelves.Place(placed.back().tokens));
    }
  }
  begins_.assign(static_cast<std::size_t>(shelves.rows()) + 1, 0);
  for (const std::int64_t row : row_of) ++begins_[static_cast<std::size_t>(row) + 1];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  std::vector<std::int64_t> next = begins_;
  pieces_.resize(placed.size());
  for (std::size_t i = 0; i < placed.size(); ++i) {
    std::int64_t& place = next[static_cast<std::size_t>(row_of[i])];
    pieces_[static_cast<std::size_t>(place++)] = placed[i];
  }
}

}  // namespace ullage::data
