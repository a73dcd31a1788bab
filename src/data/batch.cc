#include "data/batch.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "files/token_file.h"

namespace ullage::data {

Batch MakeBatch(const Dataset& dataset, std::span<const std::int64_t> records,
                const PaddingOptions& padding) {
  std::int64_t longest = 1;
  for (const std::int64_t record : records) longest = std::max(longest, dataset.Length(record));
  std::int64_t width =
      (longest + padding.multiple_of - 1) / padding.multiple_of * padding.multiple_of;
  if (padding.max_positions > 0) width = std::max(longest, std::min(width, padding.max_positions));

  Batch batch;
  batch.records = static_cast<std::int64_t>(records.size());
  batch.input_ids = at::empty({batch.records, width}, at::kLong);
  batch.attention_mask = at::empty({batch.records, width}, at::kLong);
  batch.labels = at::empty({batch.records}, at::kLong);
  auto* ids = batch.input_ids.mutable_data_ptr<std::int64_t>();
  auto* mask = batch.attention_mask.mutable_data_ptr<std::int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(longest));
  for (const std::int64_t record : records) {
    const std::int64_t length = dataset.Length(record);
    dataset.ReadTokens(record, tokens.data());
    std::copy_n(tokens.begin(), length, ids);
    std::fill(ids + length, ids + width, dataset.info().pad_token_id);
    std::fill(mask, mask + length, 1);
    std::fill(mask + length, mask + width, 0);
    ids += width;
    mask += width;
    *labels++ = dataset.Label(record);
    batch.real_tokens += length;
  }
  batch.padded_tokens = batch.records * width - batch.real_tokens;
  return batch;
}

std::int64_t CountValidLabels(const Dataset& dataset, std::span<const std::int64_t> records) {
  return std::count_if(records.begin(), records.end(), [&](std::int64_t record) {
    return dataset.Label(record) != files::kIgnoredLabel;
  });
}

}  // namespace ullage::data
