// Reading a checkpoint by range: of each file only the blocks that are needed, each once, verified
// before anything of it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/source.h"
#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::checkpoint {

class CheckpointReader final : public Source {
 public:
  // Reads the manifest and looks whether every file is there in its full size. `fs` must outlive
  // the reader. Throws IoError, UnsupportedError.
  CheckpointReader(files::FileSystem& fs, std::string directory);
  ~CheckpointReader() override;

  void Read(std::span<const Range> ranges, const Take& take) const override;
  // Keeps the last block, so that small ranges in the order of the files cost one read each.
  void ReadInto(const Range& range, std::byte* out) const override;
  std::vector<std::byte> ReadWhole(std::int64_t file, const std::string& name) const override;

  // Reads and verifies every byte of every file. `done` is told the bytes verified so far, by any
  // thread. Throws as Read.
  void VerifyAll(const std::function<void(std::int64_t bytes)>& done = {}) const;

 private:
  struct Shard;
  struct Run;  // bytes of one file that go to one range

  // Opens the file when it is first asked for. Any thread.
  const Shard& ShardOf(std::int64_t file) const;
  void AddRuns(std::size_t index, const Range& range, std::vector<Run>& runs) const;
  // Block `block` of a file into `out`, verified.
  std::span<const std::byte> ReadBlock(const Shard& shard, std::int64_t block,
                                       std::vector<std::byte>& out) const;

  files::FileSystem& fs_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Shard>> shards_;
  // Of ReadInto.
  mutable std::vector<std::byte> last_;
  mutable std::int64_t last_file_ = -1;
  mutable std::int64_t last_block_ = -1;
};

// Throws IoError unless every file of `manifest` is in `directory` in its full size.
void CheckFiles(files::FileSystem& fs, const std::string& directory, const Manifest& manifest);

}  // namespace ullage::checkpoint
