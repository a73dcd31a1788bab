// The operations on files that the product uses, as an interface: the real one, and in tests one
// that fails on purpose (faulty_file_system.h).
//
// Files move bytes by explicit offset. ReadAt and the writes loop until everything is moved, so a
// short read or write of the system is never an error by itself. What cannot be done throws
// IoError with the path, the byte and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ullage::files {

// What one system call moved; `error` is an errno and 0 when there was none.
struct Transfer {
  std::size_t bytes = 0;
  int error = 0;
};

// Open for reading. All members may be called from any thread at the same time.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // bytes, as of opening

  // Reads exactly `bytes` bytes. A range that is not inside the file is an error, also when the
  // file has shrunk since it was opened.
  void ReadAt(std::int64_t offset, void* out, std::int64_t bytes) const;

  // One system call, which may move less than asked and 0 at the end of the file.
  virtual Transfer ReadSome(std::int64_t offset, void* out, std::size_t bytes) const = 0;

 protected:
  ReadableFile(std::string path, std::int64_t size) : path_(std::move(path)), size_(size) {}

 private:
  std::string path_;
  std::int64_t size_;
};

// Open for writing, by one thread at a time. The destructor closes without reporting; call
// Sync() and Close() to know that the bytes are there.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  const std::string& path() const { return path_; }
  std::int64_t end() const { return end_; }  // where Append() writes, in bytes

  void Append(const void* data, std::int64_t bytes);
  // Anywhere, also beyond the end; Append() goes on behind the last byte written.
  void WriteAt(std::int64_t offset, const void* data, std::int64_t bytes);
  void Sync();   // until the bytes are on the device
  void Close();  // some file systems report a failed write only here

  // One system call each; the last two return an errno or 0.
  virtual Transfer WriteSome(std::int64_t offset, const void* data, std::size_t bytes) = 0;
  virtual int TrySync() = 0;
  virtual int TryClose() = 0;

 protected:
  WritableFile(std::string path, std::int64_t end) : path_(std::move(path)), end_(end) {}

 private:
  std::string path_;
  std::int64_t end_;
};

struct FileStatus {
  bool is_directory = false;
  bool is_regular = false;
  bool is_link = false;   // a symbolic link; the other members then tell about its target
  std::int64_t size = 0;  // bytes
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Only regular files (links to them included): a pipe or a device could block or never end.
  virtual std::unique_ptr<ReadableFile> OpenForRead(const std::string& path) = 0;
  virtual std::unique_ptr<WritableFile> Create(
      const std::string& path) = 0;  // emptied if it exists
  virtual std::unique_ptr<WritableFile> OpenForAppend(const std::string& path) = 0;

  virtual void Rename(const std::string& from, const std::string& to) = 0;
  // Swaps two existing names in one step. False where the file system cannot do that.
  virtual bool Exchange(const std::string& a, const std::string& b) = 0;
  // Makes creations, renames and removals inside the directory survive a power cut.
  virtual void SyncDirectory(const std::string& path) = 0;

  virtual void CreateDirectory(const std::string& path) = 0;  // its parent must exist
  virtual void Remove(const std::string& path) = 0;  // a file, a link or an empty directory
  virtual std::vector<std::string> List(const std::string& path) = 0;   // names, sorted
  virtual std::optional<FileStatus> Stat(const std::string& path) = 0;  // nullopt: no such file

  // Made of the above. RemoveTree does not follow links and is content when nothing is there.
  void RemoveTree(const std::string& path);
  void CreateDirectories(const std::string& path);
  // Whole file; IoError when it is larger than `limit_bytes`.
  std::string ReadText(const std::string& path, std::int64_t limit_bytes);
};

// The real thing. Has no state: make one where it is needed. Any thread.
class PosixFileSystem final : public FileSystem {
 public:
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
};

// "dir" for "dir/file", "." for "file", "/" for "/file".
std::string ParentOf(const std::string& path);

// Throws IoError "<path>: <action>: <reason of the errno>" with the remedy for that errno.
[[noreturn]] void ThrowErrno(const std::string& path, const std::string& action, int error);

}  // namespace ullage::files
