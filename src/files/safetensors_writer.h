// Writing a safetensors file as a stream: all tensors are declared first, then their bytes follow
// in that order. Holds nothing of the data. The file appears under its name only when complete.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::files {

struct TensorDeclaration {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
};

// One thread at a time. `fs` must outlive the writer.
class SafetensorsWriter {
 public:
  // Writes the header to "<path>.partial"; a leftover of that name is overwritten. Throws
  // ConfigError for a name that comes twice, is "__metadata__" or not UTF-8 and for a shape that
  // is negative or too large; IoError when writing fails. Readers that map the file like tensors
  // aligned: declare the widest types first.
  SafetensorsWriter(FileSystem& fs, std::string path, const std::vector<TensorDeclaration>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  // Removes the partial file unless Finish() came to its end.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next `bytes` bytes of the tensors' data, in any pieces, across tensors if convenient.
  // Throws StateError for more than was declared.
  void Append(const void* data, std::int64_t bytes);

  // Brings the file to the disk and renames it to its path, replacing what was there in one step.
  // Throws StateError while bytes are missing.
  void Finish();

  std::int64_t data_bytes() const { return data_bytes_; }  // of all declared tensors
  // The bytes of the file before the tensors'.
  const std::string& header() const { return header_; }

 private:
  FileSystem& fs_;
  std::string path_;
  std::string partial_path_;
  std::string header_;
  std::unique_ptr<WritableFile> file_;  // null after Finish()
  std::int64_t data_bytes_ = 0;
  std::int64_t appended_bytes_ = 0;
};

}  // namespace ullage::files
