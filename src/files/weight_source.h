// The weights of a Hugging Face model directory: one model.safetensors, or several files listed in
// model.safetensors.index.json; where there is none of these, pytorch_model.bin in the same two
// ways, or the fp32 values of a checkpoint that DeepSpeed wrote there. Reads ranges of tensors and
// never more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "files/file_system.h"
#include "files/safetensors.h"
#include "files/tensor_file.h"

namespace ullage::files {

class WeightFiles {
 public:
  // Opens and checks every file. Throws IoError for a directory without weights and for damaged
  // or inconsistent files (a tensor that the index lists elsewhere or not at all), UnsupportedError
  // for a TorchScript archive. `fs` must outlive the result.
  static WeightFiles Open(FileSystem& fs, const std::string& directory);

  const std::string& directory() const { return directory_; }
  const std::vector<std::string>& notes() const { return notes_; }  // TensorFile::Note of the files
  const std::vector<std::string>& names() const { return names_; }  // of all tensors, sorted

  // Type and shape; null when there is no such tensor.
  const TensorInfo* Find(const std::string& name) const;
  const TensorInfo& Get(const std::string& name) const;  // IoError when there is none
  // The path of the file that holds it, for messages.
  const std::string& FileOf(const std::string& name) const;

  // As TensorFile::Read. Any thread.
  void Read(const std::string& name, std::int64_t first, std::int64_t count, void* out) const;

 private:
  struct Place {
    std::size_t file;
    const TensorInfo* tensor;  // inside that file's list, which does not change any more
  };

  void AddFile(std::unique_ptr<TensorFile> file);
  void AddFilesOf(FileSystem& fs, const std::string& index, const char* ending,
                  std::unique_ptr<TensorFile> (*open)(FileSystem&, const std::string&));
  const Place& PlaceOf(const std::string& name) const;

  std::string directory_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::unordered_map<std::string, Place> places_;
  std::vector<std::string> names_;
  std::vector<std::string> notes_;
};

// Throws IoError that says what to do with it when `directory` holds a checkpoint of ours, which is
// easily taken for a model.
void RefuseOwnCheckpoint(FileSystem& fs, const std::string& directory);

}  // namespace ullage::files
