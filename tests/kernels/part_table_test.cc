// Which block works on what: every element of every range once, whatever the grid.
#include "kernels/device/part_table.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace ullage::kernels::device {
namespace {

using Table = PartTable<int, 8, 64>;

// How often each element of each part is met by a grid of `blocks`, which walk as EachPart does.
std::vector<std::vector<int>> Visits(const Table& table, uint32_t blocks) {
  std::vector<std::vector<int>> visits;
  for (int p = 0; p < table.count; ++p) {
    visits.emplace_back(static_cast<std::size_t>(table.numel[p]), 0);
  }
  for (uint32_t block = 0; block < blocks; ++block) {
    int part = 0;
    for (uint32_t number = block; number < table.tiles(); number += blocks) {
      const Tile tile = TileAt(table, number, part);
      EXPECT_GE(tile.part, part);
      EXPECT_LT(tile.begin, tile.end);
      EXPECT_LE(tile.end - tile.begin, Table::kTile);
      EXPECT_EQ(tile.begin % Table::kTile, 0);
      part = tile.part;
      for (int64_t i = tile.begin; i < tile.end; ++i) {
        ++visits[static_cast<std::size_t>(part)][static_cast<std::size_t>(i)];
      }
    }
  }
  return visits;
}

TEST(PartTable, EachElementOfEachPartBelongsToOneTile) {
  const std::vector<std::vector<int64_t>> shapes = {
      {1}, {64}, {65}, {1, 1, 1}, {1000, 1, 64, 128, 63, 1, 2, 500}, {3, 100'000, 7}};
  for (const std::vector<int64_t>& shape : shapes) {
    Table table;
    for (const int64_t n : shape) table.Add(0, n);
    for (const uint32_t blocks : {1U, 2U, 3U, 7U, 5000U}) {
      for (const std::vector<int>& visits : Visits(table, blocks)) {
        EXPECT_TRUE(std::ranges::all_of(visits, [](int count) { return count == 1; }))
            << blocks << " blocks";
      }
    }
  }
}

TEST(PartTable, KeepsPartsInTheirOrderAndSaysWhenItIsFull) {
  Table table;
  EXPECT_EQ(table.tiles(), 0U);
  for (int p = 0; p < Table::kCapacity; ++p) {
    ASSERT_FALSE(table.IsFull());
    table.Add(10 * p, p + 1);
  }
  EXPECT_TRUE(table.IsFull());
  EXPECT_EQ(table.tiles(), 8U);  // one for each: they are short
  for (int p = 0; p < Table::kCapacity; ++p) EXPECT_EQ(table.parts[p], 10 * p);
}

TEST(PartTable, CountsTilesOfMoreElementsThan32BitsHold) {
  Table table;
  table.Add(1, int64_t{5} << 32);
  table.Add(2, 10);
  EXPECT_EQ(table.tiles(), (uint32_t{5} << 26) + 1);
  const Tile last = TileAt(table, table.tiles() - 2, 0);
  EXPECT_EQ(last.part, 0);
  EXPECT_EQ(last.end, int64_t{5} << 32);
  const Tile next = TileAt(table, table.tiles() - 1, last.part);
  EXPECT_EQ(next.part, 1);
  EXPECT_EQ(next.begin, 0);
  EXPECT_EQ(next.end, 10);
}

}  // namespace
}  // namespace ullage::kernels::device
