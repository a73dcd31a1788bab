// The folder that the checkpoints of a run lie in: step-00000200/, step-00000400/, and a file
// `latest` that names the one to go on from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace ullage::checkpoint {

inline constexpr const char* kLatestFile = "latest";

// Has no state beside the two. `fs` must outlive it.
class CheckpointFolder {
 public:
  CheckpointFolder(files::FileSystem& fs, std::string path);

  const std::string& path() const { return path_; }
  static std::string NameOf(std::int64_t steps);  // "step-00000200"
  std::string PathOf(std::int64_t steps) const { return path_ + "/" + NameOf(steps); }

  // The steps of all that carry the name of a checkpoint, complete or not, the newest first.
  std::vector<std::int64_t> Steps() const;

  // Whether a checkpoint has a sound manifest and every file in its full size; else `why_not` says
  // what is wrong.
  bool IsComplete(std::int64_t steps, std::string* why_not = nullptr) const;

  // The directory of the checkpoint to go on from: the one that `latest` names, or, where that is
  // not complete, the newest that is. For each that had to be passed over a line is added to
  // `passed_over`. Nothing when there is no complete one.
  std::optional<std::string> Latest(std::vector<std::string>* passed_over = nullptr) const;

  // Makes the folder if need be and removes what saves that were killed have left.
  void Prepare() const;
  // `latest` names that checkpoint from now on.
  void PointTo(std::int64_t steps) const;
  // Of the checkpoints up to `newest`, removes all but the last `keep` (at least 1) complete ones;
  // `newest` itself stays. Later ones are of a run that was given up and are left alone. The
  // manifest goes first: a checkpoint that is partly removed is none.
  void Prune(std::int64_t keep, std::int64_t newest) const;

 private:
  files::FileSystem& fs_;
  const std::string path_;
};

}  // namespace ullage::checkpoint
