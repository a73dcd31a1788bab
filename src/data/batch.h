// A micro-batch as tensors: records padded to the longest with the mask that says what is real, or
// rows of packed documents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/sampler.h"

namespace ullage::data {

struct Batch {
  // B records of S tokens. B may be 0, then S is the padding multiple, or the rows' length. CPU,
  // int64 but for document_ids. Undefined tensors say nothing: no padding, positions counted from
  // 0, one document in each row.
  at::Tensor input_ids;       // [B, S], pad_token_id where there is no token
  at::Tensor attention_mask;  // [B, S], 1 for a token, 0 for padding; classification only
  at::Tensor labels;          // -100: counts nowhere. [B]; of packed rows [B, S], each token's own
  at::Tensor position_ids;    // [B, S], from 0 in each document; undefined: 0 to S - 1 in each row
  at::Tensor document_ids;    // [B, S] int32, counted in each row; undefined: one in each row

  std::int64_t records = 0;        // B
  std::int64_t real_tokens = 0;    // tokens that are no padding
  std::int64_t padded_tokens = 0;  // padding: B * S - real_tokens
  // Labels other than -100 over the whole step: all ranks, all micro-steps. The loss of a label
  // weighs 1 / step_valid_labels. In an evaluation: over all records.
  std::int64_t step_valid_labels = 0;

  Position position;             // the step it belongs to
  std::int64_t micro_batch = 0;  // its number within the step, m * W + r
};

// Share of the positions that are padding, 0 to 1; 0 when there are none.
inline double PaddingShare(std::int64_t real_tokens, std::int64_t padded_tokens) {
  const std::int64_t all = real_tokens + padded_tokens;
  return all == 0 ? 0 : static_cast<double>(padded_tokens) / static_cast<double>(all);
}

struct PaddingOptions {
  std::int64_t multiple_of = 1;    // S is rounded up to a multiple of this ...
  std::int64_t max_positions = 0;  // ... but never beyond the model's positions (0: no limit)
};

}  // namespace ullage::data
