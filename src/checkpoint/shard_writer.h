// One rank's tensor file of a checkpoint, written as a stream with its checksums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/block_checksums.h"
#include "checkpoint/manifest.h"
#include "files/file_system.h"
#include "files/safetensors_writer.h"

namespace ullage::checkpoint {

// One thread. `fs` must outlive the writer.
class ShardWriter {
 public:
  // Begins "<directory>/<name>". Every tensor must start at a multiple of its element's bytes, so
  // that no element lies in two blocks: declare the widest types first. Throws as
  // files::SafetensorsWriter, and StateError for another order.
  ShardWriter(files::FileSystem& fs, const std::string& directory, std::string name,
              const std::vector<files::TensorDeclaration>& tensors);

  // The next bytes of the tensors, in any pieces.
  void Append(const void* data, std::int64_t bytes);

  // Brings the file to the disk and gives its entry in the manifest. Throws StateError while bytes
  // are missing.
  File Finish();

 private:
  const std::string name_;
  files::SafetensorsWriter file_;
  BlockChecksums checksums_;
};

// "rank-00001-of-00004.safetensors"
std::string ShardName(std::int64_t rank, std::int64_t world_size);

}  // namespace ullage::checkpoint
