// A checkpoint that DeepSpeed wrote, to go on from: weights, Adam's moments, the number of steps
// and the loss scale.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/source.h"
#include "files/deepspeed_checkpoint.h"

namespace ullage::checkpoint {

class DeepSpeedSource final : public Source {
 public:
  // Reads the pickles of all files and no tensor. With `prefer_universal` a folder that has both
  // forms is read in its universal one, and one that has none is refused. `fs` must outlive the
  // source. Throws as files::DeepSpeedCheckpoint, and UnsupportedError when parameters are not all
  // at the same step.
  DeepSpeedSource(files::FileSystem& fs, const std::string& directory, bool prefer_universal);

  bool is_foreign() const override { return true; }
  std::vector<std::string> notes() const override { return notes_; }

  // torch.save keeps no checksums by range: damage to values is not noticed.
  void Read(std::span<const Range> ranges, const Take& take) const override;
  void ReadInto(const Range& range, std::byte* out) const override;
  std::vector<std::byte> ReadWhole(std::int64_t file, const std::string& name) const override;

 private:
  explicit DeepSpeedSource(files::DeepSpeedCheckpoint checkpoint);
  void ReadPiece(const Range& range, std::int64_t first, std::int64_t count, std::byte* out) const;

  const files::DeepSpeedCheckpoint checkpoint_;
  std::vector<std::string> notes_;
};

}  // namespace ullage::checkpoint
