// What `ullage train` keeps in a checkpoint beside the engine's state, and how a run finds the
// checkpoint that it goes on from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "data/sampler.h"
#include "files/file_system.h"

namespace ullage::cli {

// What the order of the data follows from. Equal before and after an interruption, or records would
// be seen twice or not at all.
struct DataIdentity {
  std::int64_t records = 0;
  std::string lengths;  // a checksum of the records' lengths
  std::int64_t train_batch = 0;
  std::int64_t order_batch = 0;
  std::uint64_t seed = 0;
  bool group_by_length = true;
  bool drop_last = false;
};

struct RunState {
  DataIdentity data;
  data::Position position;  // the step that comes next
  int num_labels = 0;       // of the model; 0: it has no classes
  // Of the best evaluation so far, as TrainingLoop counts it.
  std::optional<double> best_score = std::nullopt;
};

std::string ToJson(const RunState& state);
// Throws IoError that begins with `path` for a text that ToJson does not write.
RunState ParseRunState(const std::string& path, const std::string& json);

// Of a sampler and the lengths that it was made from.
DataIdentity IdentityOf(const data::Sampler& sampler, const std::vector<std::int64_t>& lengths);

// Throws ConfigError that names what differs.
void CheckSameData(const DataIdentity& saved, const DataIdentity& here, const std::string& path);

struct ResumePoint {
  std::string path;             // of the checkpoint
  std::int64_t steps = 0;       // done, skipped ones included
  std::int64_t world_size = 1;  // that wrote it
  // Another program wrote it, which says nothing of the data. Then all of `state` but the position
  // is empty, and the position is to be filled in: that of a run of ours after so many steps.
  bool is_foreign = false;
  RunState state;
};

// The directory of the checkpoint that the arguments ask to go on from; nothing when they do not,
// or --resume finds none yet. Adds lines for people. Throws ConfigError when the output holds
// checkpoints and the arguments do not say what to do with them; IoError when --resume-from names
// no complete checkpoint.
std::optional<std::string> FindCheckpoint(files::FileSystem& fs, const TrainArguments& arguments,
                                          std::vector<std::string>& lines);

// Reads what the checkpoint says; `prefer_universal` as in checkpoint::OpenSource. Throws IoError
// for one that neither `ullage train` nor DeepSpeed has written.
ResumePoint ReadResumePoint(files::FileSystem& fs, const std::string& path, bool prefer_universal);

// `path` itself when it is a checkpoint; else the last complete one in it, or in its folder
// "checkpoints". Adds a line for each that was passed over. Throws IoError when there is none.
std::string ResolveCheckpoint(files::FileSystem& fs, const std::string& path,
                              std::vector<std::string>& lines);

}  // namespace ullage::cli
