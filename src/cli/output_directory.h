// The folder that a run writes into: only one that is new, empty, or an earlier run's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "files/file_system.h"

namespace ullage::cli {

// The mark of our own folders, and what a run says about itself.
inline constexpr const char* kRunFile = "ullage.json";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kCheckpoints = "checkpoints";  // a folder in the output

// Throws ConfigError when `output` exists and is neither empty nor the output of an earlier run, or
// is the folder `model`. Changes nothing.
void CheckOutput(files::FileSystem& fs, const std::string& output, const std::string& model);

// As above for a file that will be written: its folder must exist, and it must be no folder.
void CheckFileToWrite(files::FileSystem& fs, const std::string& path, const std::string& option);

// The file appears under its name only when complete.
void WriteWhole(files::FileSystem& fs, const std::string& path, const std::string& text);

// Copies a file of a few MB at most; throws IoError when it is larger than `limit_bytes`.
void CopySmall(files::FileSystem& fs, const std::string& from, const std::string& to,
               std::int64_t limit_bytes);

// One line for each step and evaluation, there as soon as it is written.
class MetricsFile {
 public:
  // Goes on behind the lines of steps 1 to `steps_done` that are there; with 0 begins anew. `fs` is
  // not used after the call.
  MetricsFile(files::FileSystem& fs, const std::string& directory, std::int64_t steps_done = 0);
  void Add(const std::string& json_line);

 private:
  std::unique_ptr<files::WritableFile> file_;
};

}  // namespace ullage::cli
