// The printed forms of a plan: JSON and a table.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "plan/plan.h"

namespace ullage::plan {
namespace {

const char* Text(StateShare share) {
  switch (share) {
    case StateShare::kNone:
      return "none";
    case StateShare::kSlice:
      return "slice";
    case StateShare::kWhole:
      return "whole";
  }
  return "?";
}

}  // namespace

std::string Plan::ToJson() const {
  using Json = nlohmann::ordered_json;
  Json units_json = Json::array();
  for (const UnitPlan& plan : units) {
    Json members = Json::array();
    for (const layout::Member& member : plan.unit.members) {
      members.push_back({{"name", parameters[static_cast<std::size_t>(member.parameter)].name},
                         {"offset", member.offset},
                         {"numel", member.numel}});
    }
    units_json.push_back({{"dtype", Name(plan.unit.dtype)},
                          {"trainable", plan.unit.trainable},
                          {"weights", plan.unit.sliced ? "slice" : "whole"},
                          {"resident", plan.resident},
                          {"home", Name(plan.home)},
                          {"state_home", Name(plan.state_tier())},
                          {"state", Text(plan.state)},
                          {"slice_numel", plan.unit.slice_numel},
                          {"members", std::move(members)}});
  }
  Json ranks = Json::array();
  for (int rank = 0; rank < world_size; ++rank) {
    Json by_tag;
    const TagBytes bytes = BytesOfRank(rank);
    for (std::size_t tag = 0; tag < kTagCount; ++tag) by_tag[kTagNames[tag]] = bytes[tag];
    ranks.push_back(std::move(by_tag));
  }
  return Json{{"world_size", world_size},
              {"stage", stage},
              {"weight_dtype", Name(weight_dtype)},
              {"ring_bytes", ring_bytes},
              {"prefetch_bytes", prefetch_bytes},
              {"landing_bytes", landing_bytes},
              {"crossing_bytes", crossing_bytes},
              {"stream_bytes", stream_bytes},
              {"disk_slot_bytes", disk_slot_bytes},
              {"save_buffer_bytes", save_buffer_bytes},
              {"staging_ring_bytes", staging_ring_bytes},
              {"own_staging_bytes", own_staging_bytes},
              {"sums_tile_bytes", sums_tile_bytes},
              {"exchange_scratch_bytes", exchange_scratch_bytes},
              {"bucket_numel", bucket_numel},
              {"device_budget", device_budget},
              {"operator_bytes", operator_bytes},
              {"outside_bytes", outside_bytes},
              {"bytes_per_rank", std::move(ranks)},
              {"units", std::move(units_json)}}
      .dump(2);
}

std::string Plan::ToText() const {
  std::int64_t numel = 0, trainable = 0;
  for (const layout::ParameterSpec& spec : parameters) {
    numel += spec.numel;
    if (spec.trainable) trainable += spec.numel;
  }
  std::string text = fmt::format(
      "{} parameters ({} trainable) in {} units, {}, ZeRO stage {} on {} rank{}\n", numel,
      trainable, units.size(), Name(weight_dtype), stage, world_size, world_size == 1 ? "" : "s");
  // Ranks differ only in padding, so a few columns say all.
  const int columns = std::min(world_size, 8);
  text += fmt::format("{:<12}", "bytes");
  for (int rank = 0; rank < columns; ++rank)
    text += fmt::format("{:>14}", fmt::format("rank {}", rank));
  text += "\n";
  std::vector<std::int64_t> totals(static_cast<std::size_t>(columns));
  for (std::size_t tag = 0; tag < kTagCount; ++tag) {
    if (static_cast<Tag>(tag) == Tag::kData) continue;  // not the plan's
    if (static_cast<Tag>(tag) == Tag::kSaves && save_buffer_bytes == 0) continue;
    text += fmt::format("{:<12}", kTagNames[tag]);
    for (int rank = 0; rank < columns; ++rank) {
      const std::int64_t bytes = BytesOfRank(rank)[tag];
      totals[static_cast<std::size_t>(rank)] += bytes;
      text += fmt::format("{:>14}", FormatBytes(bytes));
    }
    text += "\n";
  }
  text += fmt::format("{:<12}", "total");
  for (const std::int64_t total : totals) text += fmt::format("{:>14}", FormatBytes(total));
  text += "\n";
  if (device_budget > 0) {
    const auto row = [&](const char* name, const auto& bytes_of) {
      text += fmt::format("{:<12}", name);
      for (int rank = 0; rank < columns; ++rank)
        text += fmt::format("{:>14}", FormatBytes(bytes_of(rank)));
      text += "\n";
    };
    row("on device", [&](int rank) {
      const TagBytes bytes = BytesOfRank(rank, Tier::kDevice);
      return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    });
    row("operators", [&](int) { return operator_bytes; });
    row("outside", [&](int) { return outside_bytes; });
    row("of budget", [&](int) { return device_budget; });
  }
  for (const auto& [name, tier] :
       {std::pair{"on the host", Tier::kHost}, std::pair{"on disk", Tier::kDisk}}) {
    std::vector<std::int64_t> there;
    for (int rank = 0; rank < columns; ++rank) {
      const TagBytes bytes = BytesOfRank(rank, tier);
      there.push_back(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
    }
    if (there.front() == 0) continue;
    text += fmt::format("{:<12}", name);
    for (const std::int64_t bytes : there) text += fmt::format("{:>14}", FormatBytes(bytes));
    text += "\n";
  }
  if (columns < world_size)
    text += fmt::format("ranks {} to {} likewise\n", columns, world_size - 1);
  return text;
}

}  // namespace ullage::plan
