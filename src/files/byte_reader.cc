#include "files/byte_reader.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr std::int64_t kBufferBytes = 64 * 1024;

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0u);
    table[i] = value;
  }
  return table;
}();

}  // namespace

std::uint32_t Crc32(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* next = static_cast<const std::uint8_t*>(data);
  crc = ~crc;
  for (std::size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kCrcTable[(crc ^ next[i]) & 0xFF];
  return ~crc;
}

void ByteReader::Fail(std::int64_t position, const std::string& what) const {
  throw IoError(fmt::format("{}: {}byte {}: {}", path(), where_, position, what),
                "the file is damaged, or not what it is named: fetch or write it again");
}

void ByteReader::Need(std::uint64_t bytes) const {
  if (bytes > static_cast<std::uint64_t>(left())) {
    Fail(position(), fmt::format("{} bytes are expected, {} are left", bytes, left()));
  }
}

void ByteReader::Fill() {
  const std::int64_t bytes = std::min(kBufferBytes, left());
  buffer_.resize(static_cast<std::size_t>(bytes));
  file_.ReadAt(next_, buffer_.data(), bytes);
  buffer_begin_ = next_;
}

std::uint8_t ByteReader::Byte() {
  Need(1);
  if (next_ < buffer_begin_ || next_ >= buffer_begin_ + std::ssize(buffer_)) Fill();
  return buffer_[static_cast<std::size_t>(next_++ - buffer_begin_)];
}

std::uint64_t ByteReader::Little(int bytes) {
  Need(static_cast<std::uint64_t>(bytes));
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(Byte()) << (8 * i);
  return value;
}

std::string ByteReader::String(std::uint64_t bytes) {
  Need(bytes);
  std::string text(bytes, '\0');
  if (bytes <= 64) {
    for (char& c : text) c = static_cast<char>(Byte());
  } else {
    file_.ReadAt(next_, text.data(), static_cast<std::int64_t>(bytes));
    next_ += static_cast<std::int64_t>(bytes);
  }
  return text;
}

std::string ByteReader::Line(std::size_t limit) {
  const std::int64_t start = position();
  std::string text;
  for (char c = static_cast<char>(Byte()); c != '\n'; c = static_cast<char>(Byte())) {
    if (text.size() == limit) Fail(start, fmt::format("a line is longer than {} bytes", limit));
    text.push_back(c);
  }
  return text;
}

void ByteReader::Skip(std::uint64_t bytes) {
  Need(bytes);
  next_ += static_cast<std::int64_t>(bytes);
}

}  // namespace ullage::files
