#include "checkpoint/shard_writer.h"

#include <fmt/format.h>

#include <utility>

#include "ullage/error.h"

namespace ullage::checkpoint {

ShardWriter::ShardWriter(files::FileSystem& fs, const std::string& directory, std::string name,
                         const std::vector<files::TensorDeclaration>& tensors)
    : name_(std::move(name)),
      file_(fs, directory + "/" + name_, tensors, {{"format", "ullage-checkpoint"}}) {
  auto offset = static_cast<std::int64_t>(file_.header().size());
  for (const files::TensorDeclaration& tensor : tensors) {
    const std::int64_t element = files::ElementBytes(tensor.type);
    if (offset % element != 0) {
      throw StateError(fmt::format("{}: tensor '{}' would start at byte {}, no multiple of {}",
                                   name_, tensor.name, offset, element));
    }
    offset += files::CheckedNumel(tensor.shape, tensor.type) * element;
  }
  checksums_.Update(file_.header().data(), std::ssize(file_.header()));
}

void ShardWriter::Append(const void* data, std::int64_t bytes) {
  checksums_.Update(data, bytes);
  file_.Append(data, bytes);
}

File ShardWriter::Finish() {
  file_.Finish();
  return {name_, std::ssize(file_.header()) + file_.data_bytes(), checksums_.Finish()};
}

std::string ShardName(std::int64_t rank, std::int64_t world_size) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, world_size);
}

}  // namespace ullage::checkpoint
