#include "data/batch.h"

#include "../files/scratch.h"
#include "sample_data.h"

namespace ullage::data {
namespace {

using testsupport::kPad;
using testsupport::OpenData;
using testsupport::Scratch;
using testsupport::WriteTokens;
using Ints = std::vector<std::int64_t>;

Ints Values(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  return Ints(data, data + tensor.numel());
}

TEST(Batch, PadsToTheLongestRecordAndMasksThePadding) {
  Scratch scratch;
  WriteTokens(scratch / "t", {{1, 2, 3}, {4}, {5, 6}}, {1, 0, -100});
  const Dataset data = OpenData(scratch / "t");
  const Batch batch = data.MakeBatch(Ints{2, 0}, {});
  EXPECT_EQ(batch.input_ids.sizes().vec(), (Ints{2, 3}));
  EXPECT_EQ(Values(batch.input_ids), (Ints{5, 6, kPad, 1, 2, 3}));
  EXPECT_EQ(Values(batch.attention_mask), (Ints{1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(Values(batch.labels), (Ints{-100, 1}));
  EXPECT_EQ(batch.records, 2);
  EXPECT_EQ(batch.real_tokens, 5);
  EXPECT_EQ(batch.padded_tokens, 1);
  EXPECT_EQ(data.CountValidLabels(Ints{2, 0}), 1);
}

TEST(Batch, RoundsTheLengthUpButNotBeyondThePositions) {
  Scratch scratch;
  WriteTokens(scratch / "t", {{1, 2, 3}, {4, 4, 4, 4, 4, 4, 4, 4, 4}}, {1, 0});
  const Dataset data = OpenData(scratch / "t");
  EXPECT_EQ(data.MakeBatch(Ints{0}, {.multiple_of = 8}).input_ids.size(1), 8);
  EXPECT_EQ(data.MakeBatch(Ints{1}, {.multiple_of = 8}).input_ids.size(1), 16);
  EXPECT_EQ(data.MakeBatch(Ints{1}, {.multiple_of = 8, .max_positions = 10}).input_ids.size(1), 10);
  const Batch padded = data.MakeBatch(Ints{0, 1}, {.multiple_of = 8});
  EXPECT_EQ(padded.padded_tokens, 20);
  EXPECT_DOUBLE_EQ(PaddingShare(padded.real_tokens, padded.padded_tokens), 0.625);
}

TEST(Batch, MayHaveNoRecords) {
  Scratch scratch;
  WriteTokens(scratch / "t", {{1}}, {1});
  const Batch batch = OpenData(scratch / "t").MakeBatch({}, {.multiple_of = 8});
  EXPECT_EQ(batch.input_ids.sizes().vec(), (Ints{0, 8}));
  EXPECT_EQ(batch.labels.sizes().vec(), (Ints{0}));
  EXPECT_EQ(batch.records, 0);
  EXPECT_EQ(batch.padded_tokens, 0);
  EXPECT_EQ(PaddingShare(0, 0), 0);
}

}  // namespace
}  // namespace ullage::data
