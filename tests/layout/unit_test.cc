#include "layout/unit.h"

#include <gtest/gtest.h>

namespace ullage::layout {
namespace {

ParameterSpec Spec(std::int64_t numel, DType dtype = DType::kFloat32, bool trainable = true,
                   bool whole = false) {
  return {"p", {numel}, numel, dtype, trainable, whole};
}

TEST(Units, StartEveryParameterAtAMultipleOf64) {
  const auto units = MakeUnits({Spec(1), Spec(65), Spec(64)}, 1 << 20, true, 2);
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].members[0].offset, 0);
  EXPECT_EQ(units[0].members[1].offset, 64);
  EXPECT_EQ(units[0].members[2].offset, 192);
  EXPECT_EQ(units[0].numel, 130);
  EXPECT_EQ(units[0].slice_numel, 128);
}

TEST(Units, SplitByDtypeTrainabilityAndResidency) {
  const auto units =
      MakeUnits({Spec(10), Spec(10, DType::kBFloat16), Spec(10, DType::kFloat32, false),
                 Spec(10, DType::kFloat32, true, true), Spec(20)},
                1 << 20, true, 2);
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[0].members.size(), 2u);  // the first and the last
  EXPECT_FALSE(units[2].trainable);
  EXPECT_FALSE(units[3].sliced);
}

TEST(Units, KeepToTheSizeUnlessOneParameterIsLarger) {
  const auto units = MakeUnits({Spec(64), Spec(64), Spec(1000), Spec(64)}, 512, false, 1);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[0].members.size(), 2u);
  EXPECT_EQ(units[1].members.size(), 1u);
  EXPECT_EQ(units[1].slice_numel, 1024);
}

TEST(Units, SkipParametersWithoutElements) {
  const auto units = MakeUnits({Spec(0), Spec(8), Spec(0)}, 1 << 20, true, 4);
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].members[0].parameter, 1);
}

TEST(Units, RoundSlicesUpToTheGivenMultiple) {
  for (const int world_size : {1, 2, 3}) {
    const auto units = MakeUnits({Spec(100), Spec(700)}, 1, false, world_size, 256);
    ASSERT_EQ(units.size(), 2u);
    EXPECT_EQ(units[0].slice_numel, 256);
    EXPECT_EQ(units[1].slice_numel, world_size == 1 ? 768 : world_size == 2 ? 512 : 256);
    EXPECT_EQ(units[1].members[0].offset, 0);
  }
}

TEST(Slices, CoverEveryElementOnceInOrder) {
  const auto units = MakeUnits({Spec(100), Spec(7), Spec(300)}, 1 << 20, true, 4);
  std::vector<std::int64_t> seen(3, 0);
  for (int rank = 0; rank < 4; ++rank) {
    for (const Piece& piece : PiecesOfSlice(units[0], rank)) {
      EXPECT_EQ(piece.parameter_offset, seen[static_cast<std::size_t>(piece.parameter)]);
      seen[static_cast<std::size_t>(piece.parameter)] += piece.numel;
      const Member& member = units[0].members[static_cast<std::size_t>(piece.parameter)];
      EXPECT_EQ(rank * units[0].slice_numel + piece.slice_offset,
                member.offset + piece.parameter_offset);
    }
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{100, 7, 300}));
}

TEST(Slices, OfOneElementLeaveOtherRanksPaddingOnly) {
  const auto units = MakeUnits({Spec(1)}, 1 << 20, true, 4);
  EXPECT_EQ(units[0].slice_numel, 64);
  EXPECT_EQ(OwnedNumel(units[0], 0), 1);
  EXPECT_EQ(OwnedNumel(units[0], 3), 0);
}

}  // namespace
}  // namespace ullage::layout
