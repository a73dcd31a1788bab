#include "engine/support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/connect.h"
#include "support/run_ranks.h"

namespace ullage::testing {

std::string Describe(const Case& c) {
  return fmt::format(
      "stage {}, {} ranks, buckets of {}, units of {} bytes, optimizer {}, weights {}, prefetch {}",
      c.stage, c.world_size, c.bucket_numel, c.unit_bytes,
      c.offload_optimizer
          ? fmt::format("to {} by {}", c.to_disk ? "disk" : "the host", *c.offload_optimizer)
          : "here",
      c.offload_param ? "offloaded" : "here",
      c.prefetch_numel ? fmt::format("{}", *c.prefetch_numel) : "not given");
}

std::vector<Case> AllCases(std::vector<int> world_sizes) {
  std::vector<Case> cases;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : world_sizes) {
      for (const std::int64_t bucket : {1, 3, 7, 1'000'000}) {
        cases.push_back({stage, world_size, bucket, 32 << 20});
      }
      cases.push_back({stage, world_size, 7, 1});
    }
  }
  return cases;
}

std::vector<Case> EachTier(const Case& c) {
  std::vector<Case> cases = {c};
  if (c.stage == 0) return cases;
  for (const double ratio : {0.0, 0.3, 0.7, 1.0}) {
    cases.push_back(c);
    cases.back().offload_optimizer = ratio;
  }
  cases.push_back(c);
  cases.back().offload_optimizer = 0.5;
  cases.back().to_disk = true;
  if (c.stage < 3) return cases;
  cases.push_back(c);
  cases.back().offload_param = true;
  cases.push_back(cases.back());
  cases.back().offload_optimizer = 1.0;
  cases.push_back(cases.back());
  cases.back().to_disk = true;
  return cases;
}

Settings SettingsFor(const Case& c, const std::string& extra) {
  nlohmann::json json = {{"train_micro_batch_size_per_gpu", 1},
                         {"gradient_clipping", 0},
                         {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
                         {"zero_optimization",
                          {{"stage", c.stage},
                           {"reduce_bucket_size", c.bucket_numel * c.world_size},
                           {"stage3_param_persistence_threshold", 0}}},
                         {"ullage", {{"unit_size", c.unit_bytes}, {"timeout_seconds", 60}}}};
  json.update(nlohmann::json::parse(extra), /*merge_objects=*/true);
  nlohmann::json& zero = json["zero_optimization"];
  if (c.offload_optimizer) {
    zero["offload_optimizer"] = {{"device", c.to_disk ? "nvme" : "cpu"},
                                 {"ratio", *c.offload_optimizer}};
    if (c.to_disk) zero["offload_optimizer"]["nvme_path"] = ::testing::TempDir();
  }
  if (c.offload_param) zero["offload_param"] = {{"device", "cpu"}};
  if (c.prefetch_numel) zero["stage3_prefetch_bucket_size"] = *c.prefetch_numel;
  return Settings::FromText(json.dump(), "test");
}

void OnRanks(int world_size, const std::function<void(std::shared_ptr<Ranks>)>& body,
             std::chrono::milliseconds timeout) {
  auto comms = comm::ConnectThreads(world_size, timeout);
  std::vector<std::shared_ptr<Ranks>> ranks;
  for (auto& comm : comms) ranks.push_back(std::make_shared<Ranks>(std::move(comm)));
  testsupport::RunOnThreads(world_size, [&](int rank) {
    // The thread's own reference ends with it, as a process's would.
    std::shared_ptr<Ranks> mine = std::move(ranks[static_cast<std::size_t>(rank)]);
    body(std::move(mine));
  });
}

}  // namespace ullage::testing
