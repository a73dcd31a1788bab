#include "data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace ullage::data {
namespace {

using Ints = std::vector<std::int64_t>;
using Rows = std::vector<std::vector<Piece>>;

Ints Offsets(const Ints& lengths) {
  Ints offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

Rows RowsOf(const Packing& packing) {
  Rows rows;
  for (std::int64_t row = 0; row < packing.rows(); ++row) {
    const auto pieces = packing.Row(row);
    rows.emplace_back(pieces.begin(), pieces.end());
  }
  return rows;
}

// Lengths 1 to 40 in no order.
Ints ManyLengths(std::int64_t count) {
  Ints lengths;
  for (std::int64_t i = 0; i < count; ++i) lengths.push_back(1 + i * 17 % 40);
  return lengths;
}

// Whether each of `tokens` tokens stands in exactly one place and no row is longer than allowed.
void ExpectEachOnce(const Packing& packing, std::int64_t tokens, std::int64_t sequence_length) {
  Ints seen(static_cast<std::size_t>(tokens), 0);
  for (const auto& row : RowsOf(packing)) {
    std::int64_t length = 0;
    for (const Piece& piece : row) {
      ASSERT_GT(piece.tokens, 0);
      length += piece.tokens;
      for (std::int64_t i = 0; i < piece.tokens; ++i) {
        ++seen[static_cast<std::size_t>(piece.begin + i)];
      }
    }
    EXPECT_LE(length, sequence_length);
    EXPECT_GT(length, 0);
  }
  EXPECT_EQ(seen, Ints(seen.size(), 1));
}

TEST(Packing, CutsDocumentsWhereARowIsFull) {
  const Packing packing(Offsets({3, 6, 1, 4}), {PackingRule::kCut, 4, {}});
  EXPECT_EQ(RowsOf(packing),
            (Rows{{{0, 3}, {3, 1}}, {{4, 4}}, {{8, 1}, {9, 1}, {10, 2}}, {{12, 2}}}));
  EXPECT_EQ(packing.cut_documents(), 2);
}

TEST(Packing, KeepsWholeWhatFitsIntoARow) {
  // 3 and 6 do not share a row of 8; 5 goes to the 3, 2 to the 6, and 9 is cut into 8 and 1.
  const Packing packing(Offsets({3, 6, 5, 9, 2}), {PackingRule::kWhole, 8, {}});
  EXPECT_EQ(RowsOf(packing), (Rows{{{0, 3}, {9, 5}}, {{3, 6}, {22, 1}}, {{14, 8}}, {{23, 2}}}));
  EXPECT_EQ(packing.cut_documents(), 1);
}

TEST(Packing, GivesEveryTokenOnePlace) {
  const Ints lengths = ManyLengths(1000);
  const Ints offsets = Offsets(lengths);
  for (const std::int64_t sequence_length : {1, 7, 32, 100, 100'000}) {
    for (const PackingRule rule : {PackingRule::kCut, PackingRule::kWhole}) {
      const Packing packing(offsets, {rule, sequence_length, 5});
      ExpectEachOnce(packing, offsets.back(), sequence_length);
    }
  }
}

TEST(Packing, OnlyTheLastRowOfCutDocumentsHasPadding) {
  const Ints offsets = Offsets(ManyLengths(1000));
  const Packing packing(offsets, {PackingRule::kCut, 64, 3});
  EXPECT_EQ(packing.rows(), (offsets.back() + 63) / 64);
}

TEST(Packing, WholeDocumentsLeaveLittlePadding) {
  const Ints offsets = Offsets(ManyLengths(20'000));
  const Packing packing(offsets, {PackingRule::kWhole, 128, 3});
  EXPECT_EQ(packing.cut_documents(), 0);
  EXPECT_LT(static_cast<double>(packing.rows() * 128 - offsets.back()),
            0.02 * static_cast<double>(offsets.back()));
}

TEST(Packing, TheSeedAloneGivesTheOrder) {
  const Ints offsets = Offsets(ManyLengths(50));
  const auto rows = [&](std::optional<std::uint64_t> seed) {
    return RowsOf(Packing(offsets, {PackingRule::kCut, 16, seed}));
  };
  EXPECT_EQ(rows(1), rows(1));
  EXPECT_NE(rows(1), rows(2));
  EXPECT_NE(rows(1), rows({}));
  EXPECT_EQ(rows({})[0][0], (Piece{0, 1}));   // the order of the file
  EXPECT_EQ(rows(1)[0][0], (Piece{789, 7}));  // golden: never changes between versions
}

TEST(Packing, ARowWithoutRoomForManyIsGivenUp) {
  // 300 documents of 60 %: no two fit together, and the small ones still find the last 256 rows.
  Ints lengths(300, 6);
  lengths.insert(lengths.end(), 300, 4);
  const Packing packing(Offsets(lengths), {PackingRule::kWhole, 10, {}});
  // 44 rows were given up with 4 tokens of room; the small ones that these would have taken share
  // rows of their own.
  EXPECT_EQ(packing.rows(), 300 + 22);
  EXPECT_EQ(packing.Row(0).size(), 1u);
  EXPECT_EQ(packing.Row(299).size(), 2u);
}

TEST(Packing, NoDocumentsMakeNoRows) {
  EXPECT_EQ(Packing(Ints{0}, {PackingRule::kCut, 4, 1}).rows(), 0);
  EXPECT_EQ(Packing(Ints{0}, {PackingRule::kWhole, 4, 1}).rows(), 0);
}

}  // namespace
}  // namespace ullage::data
