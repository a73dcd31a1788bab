#include "files/zip_archive.h"

#include <algorithm>

#include <fmt/format.h>

#include "files/byte_reader.h"
#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

// Names and sizes as in the zip specification (APPNOTE 6.3, sections 4.3 and 4.5.3).
constexpr std::uint64_t kLocalHeader = 0x04034b50;
constexpr std::uint64_t kDirectoryHeader = 0x02014b50;
constexpr std::uint64_t kEndRecord = 0x06054b50;
constexpr std::uint64_t kEndRecord64 = 0x06064b50;
constexpr std::uint64_t kEndLocator64 = 0x07064b50;
constexpr std::int64_t kLocalHeaderBytes = 30;
constexpr std::int64_t kDirectoryHeaderBytes = 46;
constexpr std::int64_t kEndRecordBytes = 22;
constexpr std::int64_t kEndRecord64Bytes = 56;
constexpr std::int64_t kEndLocator64Bytes = 20;
constexpr std::int64_t kLongestComment = 0xFFFF;
constexpr std::uint64_t kIn64BitField = 0xFFFFFFFF;
constexpr std::uint64_t kSizesTag = 0x0001;  // of the extra field with 64-bit sizes
constexpr std::uint64_t kMaxEntries = 1'000'000;

[[noreturn]] void Fail(const ReadableFile& file, std::int64_t byte, const std::string& what) {
  throw IoError(fmt::format("{}: byte {}: {}", file.path(), byte, what),
                "the zip file is damaged: fetch it or save it again");
}

// Where the directory lies and how many entries it has.
struct Directory {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t entries = 0;
};

std::int64_t FindEndRecord(const ReadableFile& file) {
  const std::int64_t size = file.size();
  if (size < kEndRecordBytes) Fail(file, size, "too short for a zip file");
  const std::int64_t begin = std::max<std::int64_t>(0, size - kEndRecordBytes - kLongestComment);
  std::vector<unsigned char> tail(static_cast<std::size_t>(size - begin));
  file.ReadAt(begin, tail.data(), size - begin);
  for (std::int64_t at = size - kEndRecordBytes; at >= begin; --at) {
    const unsigned char* p = tail.data() + (at - begin);
    const bool signature = p[0] == 'P' && p[1] == 'K' && p[2] == 5 && p[3] == 6;
    if (signature && at + kEndRecordBytes + p[20] + 256 * p[21] == size) return at;
  }
  Fail(file, size, "no end of a zip directory: the file is cut off");
}

Directory FindDirectory(const ReadableFile& file) {
  const std::int64_t end_record = FindEndRecord(file);
  ByteReader end(file, end_record, end_record + kEndRecordBytes);
  end.Skip(4);
  std::uint64_t disk = end.Little(2);
  std::uint64_t directory_disk = end.Little(2);
  std::uint64_t entries_here = end.Little(2);
  std::uint64_t entries = end.Little(2);
  std::uint64_t bytes = end.Little(4);
  std::uint64_t offset = end.Little(4);
  std::int64_t directory_end = end_record;

  const std::int64_t locator_at = end_record - kEndLocator64Bytes;
  if (locator_at >= kEndRecord64Bytes) {
    ByteReader locator(file, locator_at, end_record);
    if (locator.Little(4) == kEndLocator64) {
      const std::uint64_t at_disk = locator.Little(4);
      const std::uint64_t at = locator.Little(8);
      const std::uint64_t disks = locator.Little(4);
      if (at_disk != 0 || disks > 1 ||
          at != static_cast<std::uint64_t>(locator_at - kEndRecord64Bytes)) {
        Fail(file, locator_at, "the 64-bit end record is not where a single plain zip has it");
      }
      directory_end = static_cast<std::int64_t>(at);
      ByteReader end64(file, directory_end, locator_at);
      const std::uint64_t signature = end64.Little(4);
      const std::uint64_t record_bytes = end64.Little(8);
      if (signature != kEndRecord64 ||
          record_bytes != static_cast<std::uint64_t>(kEndRecord64Bytes - 12)) {
        Fail(file, directory_end, "expected the 64-bit end record of a zip file");
      }
      end64.Skip(4);  // the versions
      disk = end64.Little(4);
      directory_disk = end64.Little(4);
      entries_here = end64.Little(8);
      entries = end64.Little(8);
      bytes = end64.Little(8);
      offset = end64.Little(8);
    }
  }
  const auto room = static_cast<std::uint64_t>(directory_end);
  if (disk != 0 || directory_disk != 0 || entries_here != entries) {
    Fail(file, end_record, "the zip file is one of several parts");
  }
  if (bytes > room || offset != room - bytes || entries > bytes / kDirectoryHeaderBytes) {
    Fail(file, end_record,
         fmt::format("the directory of {} entries is said to be {} bytes at {}, but it must end "
                     "at {}",
                     entries, bytes, offset, directory_end));
  }
  if (entries > kMaxEntries) {
    Fail(file, end_record, fmt::format("{} entries, at most {} are read", entries, kMaxEntries));
  }
  return {.begin = static_cast<std::int64_t>(offset), .end = directory_end, .entries = entries};
}

// What one header of the directory says; `header` is the offset of the local header.
struct Listed {
  ZipEntry entry;
  std::int64_t header = 0;
};

// The 64-bit values of an extra field, which stand there for those that do not fit in 32 bits.
void ReadSizes64(const ReadableFile& file, std::int64_t header_at, const std::string& extra,
                 std::uint64_t& plain, std::uint64_t& stored, std::uint64_t& offset) {
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(extra[at + i])) << (8 * i);
    }
    return value;
  };
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const std::uint64_t tag = number(at, 2);
    const std::size_t bytes = number(at + 2, 2);
    at += 4;
    if (bytes > extra.size() - at) break;
    if (tag == kSizesTag) {
      std::size_t next = at;
      for (std::uint64_t* value : {&plain, &stored, &offset}) {
        if (*value != kIn64BitField) continue;
        if (next + 8 > at + bytes) Fail(file, header_at, "a 64-bit size is missing");
        *value = number(next, 8);
        next += 8;
      }
      return;
    }
    at += bytes;
  }
  Fail(file, header_at, "the field with 64-bit sizes is missing");
}

Listed ReadDirectoryHeader(const ReadableFile& file, const Directory& directory,
                           ByteReader& reader) {
  const std::int64_t at = directory.begin + reader.position();
  if (reader.Little(4) != kDirectoryHeader) Fail(file, at, "expected an entry of the directory");
  reader.Skip(4);  // the versions
  const std::uint64_t flags = reader.Little(2);
  const std::uint64_t method = reader.Little(2);
  reader.Skip(4);  // the time
  Listed listed;
  listed.entry.crc32 = static_cast<std::uint32_t>(reader.Little(4));
  std::uint64_t stored = reader.Little(4);
  std::uint64_t plain = reader.Little(4);
  const std::uint64_t name_bytes = reader.Little(2);
  const std::uint64_t extra_bytes = reader.Little(2);
  const std::uint64_t comment_bytes = reader.Little(2);
  const std::uint64_t disk = reader.Little(2);
  reader.Skip(6);  // attributes
  std::uint64_t offset = reader.Little(4);
  listed.entry.name = reader.String(name_bytes);
  const std::string extra = reader.String(extra_bytes);
  reader.Skip(comment_bytes);
  if (plain == kIn64BitField || stored == kIn64BitField || offset == kIn64BitField) {
    ReadSizes64(file, at, extra, plain, stored, offset);
  }
  const std::string who = "entry " + JsonHandler::Quoted(listed.entry.name);
  if ((flags & 1) != 0) Fail(file, at, who + " is encrypted");
  const auto room = static_cast<std::uint64_t>(directory.begin);
  listed.entry.compressed = method != 0;
  const bool sizes_agree = plain == stored || listed.entry.compressed;
  if (disk != 0 || !sizes_agree || offset > room || stored > room - offset) {
    Fail(file, at,
         fmt::format("{} of {} bytes at {} does not lie before the directory at {}", who, stored,
                     offset, directory.begin));
  }
  listed.entry.bytes = static_cast<std::int64_t>(stored);
  listed.header = static_cast<std::int64_t>(offset);
  return listed;
}

// Sets the offset of the entry's bytes, which only the local header tells.
void ReadLocalHeader(const ReadableFile& file, Listed& listed, std::int64_t limit) {
  const std::string who = "entry " + JsonHandler::Quoted(listed.entry.name);
  if (limit - listed.header < kLocalHeaderBytes) {
    Fail(file, listed.header, who + " overlaps what follows it");
  }
  ByteReader reader(file, listed.header, limit);
  if (reader.Little(4) != kLocalHeader) Fail(file, listed.header, who + " does not begin here");
  reader.Skip(4);  // version and flags
  const std::uint64_t method = reader.Little(2);
  reader.Skip(16);  // time, CRC and sizes, which stand in the directory
  const std::uint64_t name_bytes = reader.Little(2);
  const std::uint64_t extra_bytes = reader.Little(2);
  if ((method != 0) != listed.entry.compressed || reader.String(name_bytes) != listed.entry.name) {
    Fail(file, listed.header, who + " is another one in its own header than in the directory");
  }
  reader.Skip(extra_bytes);
  listed.entry.offset = listed.header + reader.position();
  if (listed.entry.bytes > reader.left()) {
    Fail(file, listed.header, who + " overlaps what follows it");
  }
}

}  // namespace

ZipArchive ZipArchive::Open(const ReadableFile& file) {
  const Directory directory = FindDirectory(file);
  ByteReader reader(file, directory.begin, directory.end);
  std::vector<Listed> listed;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    listed.push_back(ReadDirectoryHeader(file, directory, reader));
  }
  if (reader.left() != 0) {
    Fail(file, directory.begin + reader.position(), "the directory has more than its entries");
  }
  std::ranges::sort(listed, {}, &Listed::header);
  ZipArchive archive;
  for (std::size_t i = 0; i < listed.size(); ++i) {
    ReadLocalHeader(file, listed[i],
                    i + 1 < listed.size() ? listed[i + 1].header : directory.begin);
    if (!archive.by_name_.emplace(listed[i].entry.name, i).second) {
      Fail(file, listed[i].header,
           "entry " + JsonHandler::Quoted(listed[i].entry.name) + " comes twice");
    }
    archive.entries_.push_back(std::move(listed[i].entry));
  }
  return archive;
}

const ZipEntry* ZipArchive::Find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void ZipArchive::Verify(const ReadableFile& file, const ZipEntry& entry) {
  constexpr std::int64_t kPiece = 64 * 1024;
  std::vector<char> piece(static_cast<std::size_t>(std::min(kPiece, entry.bytes)));
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < entry.bytes; at += kPiece) {
    const std::int64_t bytes = std::min(kPiece, entry.bytes - at);
    file.ReadAt(entry.offset + at, piece.data(), bytes);
    crc = Crc32(crc, piece.data(), static_cast<std::size_t>(bytes));
  }
  const bool computed = entry.crc32 != 0;  // torch.save can be told to leave it out
  if (computed && crc != entry.crc32) {
    Fail(file, entry.offset,
         fmt::format("the {} bytes of entry {} have the CRC {:08x}, the directory says {:08x}",
                     entry.bytes, JsonHandler::Quoted(entry.name), crc, entry.crc32));
  }
}

}  // namespace ullage::files
