// The directory of a zip file: where the bytes of each entry lie, so that those that are stored
// without compression, as torch.save does it, can be read by range.
//
// Strict, because the files come from anywhere: one disk, an end record at the very end, a
// directory right before it, local headers that agree with the directory, entries that lie inside
// the file and do not overlap, no name twice, no encryption.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "files/file_system.h"

namespace ullage::files {

struct ZipEntry {
  std::string name;
  std::int64_t offset = 0;  // of its first byte, from the start of the file
  std::int64_t bytes = 0;   // as they lie in the file
  bool compressed = false;  // then of no use here
  std::uint32_t crc32 = 0;  // 0 also where it was not computed
};

// Holds no reference to the file after Open.
class ZipArchive {
 public:
  // Reads the directory and every local header. Throws IoError with the path and the byte.
  static ZipArchive Open(const ReadableFile& file);

  const std::vector<ZipEntry>& entries() const { return entries_; }  // in the order of the bytes
  const ZipEntry* Find(std::string_view name) const;                 // null: no such entry

  // Reads the entry, which is not compressed, and throws IoError when its bytes do not have its
  // CRC-32. `file` is the one that was opened.
  static void Verify(const ReadableFile& file, const ZipEntry& entry);

 private:
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace ullage::files
