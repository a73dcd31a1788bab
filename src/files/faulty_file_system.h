// A file system that fails on purpose, in front of a real one: what a full or broken disk, or a
// kill at any byte, looks like to the code that uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace ullage::files {

// Operations are counted from 0 over the whole file system; kNever switches a fault off.
struct Faults {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int64_t full_disk_at_write = kNever;  // this write and all later ones: ENOSPC
  std::int64_t short_write_at = kNever;      // this write moves half of its bytes (at least 1)
  std::int64_t failed_read_at = kNever;      // this read and all later ones: EIO
  std::int64_t failed_sync_at = kNever;      // this fsync of a file or directory: EIO
  std::int64_t failed_rename_at = kNever;    // this rename or exchange: EIO
  // The process ends after this many bytes were written: those before are in the files, every
  // later operation fails and changes nothing.
  std::int64_t killed_after_bytes = kNever;
  // The same, counted in operations that change something (create, write, rename, remove, ...).
  std::int64_t killed_after_changes = kNever;
  bool can_exchange = true;

  struct FlippedBit {
    std::int64_t offset = 0;  // byte in the file
    int bit = 0;              // 0 to 7
  };
  std::vector<FlippedBit> flipped_bits = {};  // in everything that is read
  std::function<void()> before_write = {};    // called by every write: a disk that takes its time
  std::int64_t truncated_to = kNever;         // files opened for reading appear this long at most
};

// `base` must outlive this object, this object the files it opened. One thread at a time, except
// for reading.
class FaultyFileSystem final : public FileSystem {
 public:
  FaultyFileSystem(FileSystem& base, Faults faults);
  ~FaultyFileSystem() override;

  // What was counted so far, to choose the numbers of the faults by.
  std::int64_t writes() const;
  std::int64_t written_bytes() const;
  std::int64_t changes() const;

  std::unique_ptr<ReadableFile> OpenForRead(const std::string& path) override;
  std::unique_ptr<WritableFile> Create(const std::string& path) override;
  std::unique_ptr<WritableFile> OpenForAppend(const std::string& path) override;
  void Rename(const std::string& from, const std::string& to) override;
  bool Exchange(const std::string& a, const std::string& b) override;
  void SyncDirectory(const std::string& path) override;
  void CreateDirectory(const std::string& path) override;
  void Remove(const std::string& path) override;
  std::vector<std::string> List(const std::string& path) override;
  std::optional<FileStatus> Stat(const std::string& path) override;

  struct State;  // the faults and the counters, shared with the open files

 private:
  FileSystem& base_;
  std::unique_ptr<State> state_;
};

}  // namespace ullage::files
