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
#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::checkpoint {

// Elements [first, first + numel) of one part of a tensor.
struct Range {
  const Tensor* tensor = nullptr;  // of the reader's manifest
  std::string part;
  std::int64_t first = 0;
  std::int64_t numel = 0;
};

class CheckpointReader {
 public:
  // Reads the manifest and looks whether every file is there in its full size. `fs` must outlive
  // the reader. Throws IoError, UnsupportedError.
  CheckpointReader(files::FileSystem& fs, std::string directory);
  ~CheckpointReader();

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  // By name or alias, parameters only; null when there is none.
  const Tensor* Find(const std::string& name) const;
  const Tensor* FindBuffer(const std::string& name) const;

  // Elements [first, first + count) of a range that was asked for, counted in the tensor; `values`
  // are in the part's type.
  using Take = std::function<void(std::size_t range, std::int64_t first, const std::byte* values,
                                  std::int64_t count)>;
  // Reads `ranges` on several threads (base/parallel.h) and hands them to `take` in pieces of at
  // most a block, in any order and several at a time. Throws IoError naming the file and the bytes
  // that are damaged; `take` may have been called for others then.
  void Read(std::span<const Range> ranges, const Take& take) const;

  // One range to `out`, on this thread. Keeps the last block, so that small ranges in the order of
  // the files cost one read each. Not for several threads.
  void ReadInto(const Range& range, std::byte* out) const;

  // Reads and verifies every byte of every file. `done` is told the bytes verified so far, by any
  // thread. Throws as Read.
  void VerifyAll(const std::function<void(std::int64_t bytes)>& done = {}) const;

  // The tensor `name` of one file, whole, as bytes; empty when the file has none.
  std::vector<std::byte> ReadWhole(std::int64_t file, const std::string& name) const;

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
  const std::string directory_;
  const Manifest manifest_;
  std::unordered_map<std::string, const Tensor*> parameters_;
  std::unordered_map<std::string, const Tensor*> buffers_;
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
