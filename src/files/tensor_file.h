// Named tensors of one file, whatever its format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::files {

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  virtual const std::string& path() const = 0;
  // No name comes twice.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // What a user must know of where the tensors come from, or empty.
  virtual std::string Note() const { return ""; }
  // Elements first .. first + count - 1 of the flattened tensor, in its own type and
  // little-endian. `tensor` is one of tensors(). Any thread. Throws IoError when the range is not
  // inside the tensor.
  virtual void Read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
                    void* out) const = 0;
};

std::unique_ptr<TensorFile> OpenSafetensors(FileSystem& fs, const std::string& path);

// A state dict that torch.save wrote. Throws as TorchFile::Open does, and IoError when it is no
// dict of tensors by name. Two names may share bytes.
std::unique_ptr<TensorFile> OpenPickledWeights(FileSystem& fs, const std::string& path);

// The parameters (fp32 master values where there are any) and buffers of a checkpoint that
// DeepSpeed wrote. Throws as DeepSpeedCheckpoint::Open does. `fs` must outlive the result.
std::unique_ptr<TensorFile> OpenDeepSpeedWeights(FileSystem& fs, const std::string& directory);

}  // namespace ullage::files
