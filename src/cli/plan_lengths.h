// What `ullage plan --train` says of a file's lengths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace ullage::cli {

struct FileLengths {
  std::int64_t records = 0;
  std::int64_t longest = 0, median = 0;
  std::int64_t most = 0;  // 95 % of the records have no more tokens
  double mean = 0;
  // Of the tokens of batches whose records are drawn at random and padded to their longest, those
  // that are padding. Batches of like length, which `ullage train` makes, have next to none.
  double padding = 0;
};

// Of the records as a training sees them: cut at the model's positions, documents in rows. Throws
// as DataFor.
FileLengths LengthsOf(const std::string& path, const models::Model& model,
                      std::int64_t micro_batch);

}  // namespace ullage::cli
