// A file of torch.save (.bin, .pt), read by range: the values of its pickle, and the elements of
// the tensors in it. Both formats: the zip archive, and the one before it
// (_use_new_zipfile_serialization=False).
//
// Nothing in the file is executed or believed: see zip_archive.h and pickle.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/pickle.h"

namespace ullage::files {

class TorchFile {
 public:
  // Reads everything but the tensors' bytes. Throws IoError with path and offset, UnsupportedError
  // for TorchScript and big-endian files. `fs` is not used after the call.
  static TorchFile Open(FileSystem& fs, const std::string& path);

  const std::string& path() const { return file_->path(); }
  // What was saved. It and every value in it must not outlive this object, but may be kept when
  // this object is moved.
  PickleValue root() const { return {*pickle_, pickle_->root}; }

  // Elements first .. first + count - 1 of the flattened tensor, in its own type and
  // little-endian. `tensor` is one of root(). Any thread. Throws IoError when the range is not
  // inside the tensor. A tensor that is not contiguous may take 32 MB meanwhile.
  void Read(const PickledTensor& tensor, std::int64_t first, std::int64_t count, void* out) const;

  // Where the tensor's first element is in the file, in bytes.
  std::int64_t OffsetOf(const PickledTensor& tensor) const;

 private:
  TorchFile() = default;
  void OpenZip();
  void OpenLegacy();
  void ReadStrided(const PickledTensor& tensor, std::int64_t first, std::int64_t count,
                   void* out) const;

  std::unique_ptr<ReadableFile> file_;
  std::unique_ptr<PickleData> pickle_;
  std::vector<std::int64_t> storage_offset_;  // in the file, of PickleData::storages
};

}  // namespace ullage::files
