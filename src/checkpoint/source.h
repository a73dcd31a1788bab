// A checkpoint as those who load it see it, whoever wrote it: what it says of itself, and any range
// of its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/manifest.h"
#include "files/file_system.h"

namespace ullage::checkpoint {

// Elements [first, first + numel) of one part of a tensor.
struct Range {
  const Tensor* tensor = nullptr;  // of the source's manifest
  std::string part;
  std::int64_t first = 0;
  std::int64_t numel = 0;
};

class Source {
 public:
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  // By name or alias, parameters only; null when there is none.
  const Tensor* Find(const std::string& name) const;
  const Tensor* FindBuffer(const std::string& name) const;

  // Another program wrote it: it has no seed, no states of random generators and no client state,
  // and its buffers need not be the model's.
  virtual bool is_foreign() const { return false; }
  // What people must know before they go on from it.
  virtual std::vector<std::string> notes() const { return {}; }

  // Elements [first, first + count) of a range that was asked for, counted in the tensor; `values`
  // are in the part's type.
  using Take = std::function<void(std::size_t range, std::int64_t first, const std::byte* values,
                                  std::int64_t count)>;
  // Reads `ranges` on several threads (base/parallel.h) and hands them to `take` in pieces of at
  // most a MiB, in any order and several at a time. Throws IoError naming the file that is
  // damaged; `take` may have been called for others then.
  virtual void Read(std::span<const Range> ranges, const Take& take) const = 0;
  // One range to `out`, on this thread. Not for several threads.
  virtual void ReadInto(const Range& range, std::byte* out) const = 0;
  // The tensor `name` of one file, whole, as bytes; empty when the file has none.
  virtual std::vector<std::byte> ReadWhole(std::int64_t file, const std::string& name) const = 0;

 protected:
  Source(std::string directory, Manifest manifest);
  // Throws StateError for elements that the tensor does not have.
  static void CheckRange(const Range& range);

 private:
  const std::string directory_;
  const Manifest manifest_;
  std::unordered_map<std::string, const Tensor*> parameters_;
  std::unordered_map<std::string, const Tensor*> buffers_;
};

// Whether `directory` is a checkpoint of DeepSpeed and none of ours.
bool IsDeepSpeed(files::FileSystem& fs, const std::string& directory);

// A checkpoint of ours, or of DeepSpeed (deepspeed_source.h). `prefer_universal`:
// checkpoint.load_universal. `fs` must outlive the result. Throws as the two do.
std::unique_ptr<Source> OpenSource(files::FileSystem& fs, const std::string& directory,
                                   bool prefer_universal);

}  // namespace ullage::checkpoint
