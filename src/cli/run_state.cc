#include "cli/run_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "checkpoint/block_checksums.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/source.h"
#include "cli/output_directory.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string ToJson(const RunState& state) {
  const DataIdentity& data = state.data;
  Json json = {{"train", 1},  // the version of this text
               {"records", data.records},
               {"lengths", data.lengths},
               {"train_batch", data.train_batch},
               {"order_batch", data.order_batch},
               {"data_seed", data.seed},
               {"group_by_length", data.group_by_length},
               {"drop_last", data.drop_last},
               {"epoch", state.position.epoch},
               {"step_in_epoch", state.position.step},
               {"num_labels", state.num_labels}};
  if (state.best_score) json["best_score"] = *state.best_score;
  return json.dump();
}

RunState ParseRunState(const std::string& path, const std::string& text) {
  RunState state;
  try {
    const Json json = Json::parse(text);
    if (json.at("train").get<int>() != 1) {
      throw UnsupportedError(fmt::format("{}: was saved by a newer `ullage train`", path),
                             "resume with the version that wrote it");
    }
    state.data.records = json.at("records").get<std::int64_t>();
    state.data.lengths = json.at("lengths").get<std::string>();
    state.data.train_batch = json.at("train_batch").get<std::int64_t>();
    state.data.order_batch = json.at("order_batch").get<std::int64_t>();
    state.data.seed = json.at("data_seed").get<std::uint64_t>();
    state.data.group_by_length = json.at("group_by_length").get<bool>();
    state.data.drop_last = json.at("drop_last").get<bool>();
    state.position.epoch = json.at("epoch").get<std::int64_t>();
    state.position.step = json.at("step_in_epoch").get<std::int64_t>();
    state.num_labels = json.at("num_labels").get<int>();
    if (json.contains("best_score")) state.best_score = json.at("best_score").get<double>();
  } catch (const Json::exception& error) {
    throw IoError(
        fmt::format("{}: does not say how far `ullage train` has come: {}", path, error.what()),
        "it was saved by another program; load it through the engine");
  }
  return state;
}

DataIdentity IdentityOf(const data::Sampler& sampler, const std::vector<std::int64_t>& lengths) {
  const data::SamplerOptions& options = sampler.options();
  DataIdentity identity;
  identity.records = sampler.records();
  identity.lengths = fmt::format(
      "{:016x}", checkpoint::Checksum(lengths.data(), std::ssize(lengths) * std::int64_t{8}));
  identity.train_batch = options.train_batch;
  identity.order_batch = options.order_batch;
  identity.seed = options.seed;
  identity.group_by_length = options.group_by_length;
  identity.drop_last = options.drop_last;
  return identity;
}

void CheckSameData(const DataIdentity& saved, const DataIdentity& here, const std::string& path) {
  std::vector<std::string> problems;
  const auto compare = [&](const char* what, const auto& before, const auto& now,
                           const char* remedy) {
    if (before != now)
      problems.push_back(fmt::format("{} {}, now {}: {}", what, before, now, remedy));
  };
  compare("train_batch_size", saved.train_batch, here.train_batch,
          "set it in the settings; the number of ranks may differ");
  compare("--seed", saved.seed, here.seed, "give the same seed");
  compare("records", saved.records, here.records,
          "name the same --train file, --max-length and --sequence-length");
  if (saved.records == here.records) {
    compare("records of lengths", saved.lengths, here.lengths,
            "name the same --train file, --max-length and --sequence-length");
  }
  compare("grouping by length", saved.group_by_length, here.group_by_length,
          "give or leave out --no-group-by-length as before");
  compare("dataloader_drop_last", saved.drop_last, here.drop_last, "set it as before");
  if (problems.empty()) return;
  throw ConfigError(
      fmt::format("{}: the order of the data would not be that of the interrupted run:\n  {}", path,
                  fmt::join(problems, "\n  ")),
      "or start anew in another output");
}

std::string ResolveCheckpoint(files::FileSystem& fs, const std::string& path,
                              std::vector<std::string>& lines) {
  if (fs.Stat(path + "/" + checkpoint::kManifestFile)) return path;
  for (const std::string& folder : {path, path + "/" + kCheckpoints}) {
    if (const auto latest = checkpoint::CheckpointFolder(fs, folder).Latest(&lines)) return *latest;
  }
  throw IoError(fmt::format("{}: holds no complete checkpoint{}{}", path,
                            lines.empty() ? "" : ":\n  ", fmt::join(lines, "\n  ")),
                "name a folder such as OUTPUT/checkpoints/step-00000200");
}

std::optional<std::string> FindCheckpoint(files::FileSystem& fs, const TrainArguments& arguments,
                                          std::vector<std::string>& lines) {
  const checkpoint::CheckpointFolder own(fs, arguments.output + "/" + kCheckpoints);
  if (arguments.resume) {
    const auto latest = own.Latest(&lines);
    if (!latest && !own.Steps().empty()) {
      throw IoError(
          fmt::format("{}: no checkpoint is complete:\n  {}", own.path(), fmt::join(lines, "\n  ")),
          "copy the folder again, or remove it to start anew");
    }
    if (!latest) lines.push_back(fmt::format("{}: no checkpoint yet, starting anew", own.path()));
    return latest;
  }
  std::optional<std::string> from;
  if (!arguments.resume_from.empty()) {
    from = checkpoint::IsDeepSpeed(fs, arguments.resume_from)
               ? arguments.resume_from
               : ResolveCheckpoint(fs, arguments.resume_from, lines);
    std::error_code ignored;
    if (std::filesystem::equivalent(files::ParentOf(*from), own.path(), ignored)) return from;
  }
  if (!own.Steps().empty()) {
    throw ConfigError(
        fmt::format("{}: holds {} checkpoints of an earlier run", own.path(), own.Steps().size()),
        "go on from the last one with --resume, name another --output, or remove "
        "that folder yourself");
  }
  return from;
}

ResumePoint ReadResumePoint(files::FileSystem& fs, const std::string& path, bool prefer_universal) {
  const auto source = checkpoint::OpenSource(fs, path, prefer_universal);
  const checkpoint::Manifest& manifest = source->manifest();
  ResumePoint point;
  point.path = path;
  point.steps = manifest.steps();
  point.world_size = manifest.world_size;
  point.is_foreign = source->is_foreign();
  if (!point.is_foreign) point.state = ParseRunState(path, manifest.client_state);
  return point;
}

}  // namespace ullage::cli
