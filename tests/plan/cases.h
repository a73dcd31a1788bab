// Small plans of every stage, number of ranks, type and size of unit, and sums over their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ullage::plan {

struct Case {
  int stage;
  int world_size;
  DType dtype;
  std::int64_t unit_bytes;
};

inline std::vector<Case> Cases(int first_stage) {
  std::vector<Case> cases;
  for (int stage = first_stage; stage <= 3; ++stage) {
    for (const int world_size : {1, 2, 3, 8}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        for (const std::int64_t unit_bytes : {1, 2048, 1 << 20}) {
          cases.push_back({stage, world_size, dtype, unit_bytes});
        }
      }
    }
  }
  return cases;
}

inline Settings SettingsOf(const Case& c) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = c.stage;
  settings.zero.param_persistence_threshold = 0;
  settings.ullage.unit_size = c.unit_bytes;
  settings.precision = c.dtype == DType::kFloat32    ? Precision::kFloat32
                       : c.dtype == DType::kBFloat16 ? Precision::kBFloat16
                                                     : Precision::kFloat16;
  return settings;
}

inline std::int64_t Of(const TagBytes& bytes, Tag tag) {
  return bytes[static_cast<std::size_t>(tag)];
}

inline std::int64_t SumOverRanks(const Plan& plan, Tag tag) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < plan.world_size; ++rank) sum += Of(plan.BytesOfRank(rank), tag);
  return sum;
}

}  // namespace ullage::plan
