// Reading a part of a file from front to back, little-endian, through a small buffer. Internal to
// the room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace ullage::files {

// What ends before it should throws IoError with the path and the byte. One thread; `file` must
// outlive the reader.
class ByteReader {
 public:
  // Bytes begin .. end - 1 of `file`, which must lie inside it. Positions in messages count from
  // `begin`, after the words `where` (empty, or "data.pkl ").
  ByteReader(const ReadableFile& file, std::int64_t begin, std::int64_t end, std::string where = "")
      : file_(file), begin_(begin), end_(end), next_(begin), where_(std::move(where)) {}

  std::int64_t position() const { return next_ - begin_; }
  std::int64_t left() const { return end_ - next_; }
  const std::string& path() const { return file_.path(); }
  const std::string& where() const { return where_; }

  std::uint8_t Byte();
  std::uint64_t Little(int bytes);  // an unsigned number of 1 to 8 bytes
  std::string String(std::uint64_t bytes);
  // Up to and without the next line feed; at most `limit` bytes.
  std::string Line(std::size_t limit);
  void Skip(std::uint64_t bytes);

  // Throws IoError "<path>: <where>byte <position>: <what>".
  [[noreturn]] void Fail(std::int64_t position, const std::string& what) const;

 private:
  void Fill();
  void Need(std::uint64_t bytes) const;

  const ReadableFile& file_;
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t next_;
  std::string where_;
  std::vector<std::uint8_t> buffer_;
  std::int64_t buffer_begin_ = 0;  // in the file; bytes from here on are in buffer_
};

// As zip files have it: the polynomial of Ethernet, reflected. `crc` is that of the bytes before.
std::uint32_t Crc32(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace ullage::files
