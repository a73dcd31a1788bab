// Engines on ranks that are threads, over every stage, world size and bucket size.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ullage/engine.h"

namespace ullage::testing {

struct Case {
  int stage = 0;
  int world_size = 1;
  std::int64_t bucket_numel = 1'000'000;  // elements of each slice in one exchange
  std::int64_t unit_bytes = 32 << 20;
  std::optional<double> offload_optimizer = {};  // the ratio
  bool to_disk = false;                          // else to the CPU
  bool offload_param = false;
  std::optional<std::int64_t> prefetch_numel = {};
};

std::string Describe(const Case& c);

// Stages 0 to 3, the given world sizes, buckets of 1, 3, 7 elements and large, units of one
// parameter and of all.
std::vector<Case> AllCases(std::vector<int> world_sizes = {1, 2, 4});

// `c` as it is and with every way to place state and weights on the tiers that its stage allows.
std::vector<Case> EachTier(const Case& c);

// Settings for a case: micro-batch 1, all parameters sliced at stage 3, no clipping. `extra` is a
// JSON object whose keys replace those.
Settings SettingsFor(const Case& c, const std::string& extra = "{}");

// Runs `body` once for each rank, each on its own thread, and rethrows the first error.
void OnRanks(int world_size, const std::function<void(std::shared_ptr<Ranks>)>& body,
             std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace ullage::testing
