#include "checkpoint/source.h"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/deepspeed_source.h"
#include "files/deepspeed_checkpoint.h"
#include "ullage/error.h"

namespace ullage::checkpoint {

Source::Source(std::string directory, Manifest manifest)
    : directory_(std::move(directory)), manifest_(std::move(manifest)) {
  for (const Tensor& tensor : manifest_.tensors) {
    auto& names = tensor.role == Role::kBuffer ? buffers_ : parameters_;
    names.emplace(tensor.name, &tensor);
    for (const std::string& alias : tensor.aliases) names.emplace(alias, &tensor);
  }
}

const Tensor* Source::Find(const std::string& name) const {
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? nullptr : found->second;
}

const Tensor* Source::FindBuffer(const std::string& name) const {
  const auto found = buffers_.find(name);
  return found == buffers_.end() ? nullptr : found->second;
}

void Source::CheckRange(const Range& range) {
  const Tensor& tensor = *range.tensor;
  if (range.first >= 0 && range.numel >= 0 && range.first <= tensor.numel &&
      range.numel <= tensor.numel - range.first) {
    return;
  }
  throw StateError(fmt::format("{} elements from {} of '{}', which has {}", range.numel,
                               range.first, tensor.name, tensor.numel));
}

bool IsDeepSpeed(files::FileSystem& fs, const std::string& directory) {
  return !fs.Stat(directory + "/" + kManifestFile) &&
         files::DeepSpeedCheckpoint::IsOne(fs, directory);
}

std::unique_ptr<Source> OpenSource(files::FileSystem& fs, const std::string& directory,
                                   bool prefer_universal) {
  if (IsDeepSpeed(fs, directory)) {
    return std::make_unique<DeepSpeedSource>(fs, directory, prefer_universal);
  }
  return std::make_unique<CheckpointReader>(fs, directory);
}

}  // namespace ullage::checkpoint
