// A file system of one file in memory, for tests that open it thousands of times.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "files/file_system.h"

namespace testsupport {

// Every path is that one file; nothing can be changed.
class MemoryFile final : public ullage::files::FileSystem {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}

  std::unique_ptr<ullage::files::ReadableFile> OpenForRead(const std::string& path) override {
    return std::make_unique<Open>(path, bytes_);
  }
  std::unique_ptr<ullage::files::WritableFile> Create(const std::string& path) override {
    Refuse(path);
  }
  std::unique_ptr<ullage::files::WritableFile> OpenForAppend(const std::string& path) override {
    Refuse(path);
  }
  void Rename(const std::string& from, const std::string&) override { Refuse(from); }
  bool Exchange(const std::string& a, const std::string&) override { Refuse(a); }
  void SyncDirectory(const std::string& path) override { Refuse(path); }
  void CreateDirectory(const std::string& path) override { Refuse(path); }
  void Remove(const std::string& path) override { Refuse(path); }
  std::vector<std::string> List(const std::string& path) override { Refuse(path); }
  std::optional<ullage::files::FileStatus> Stat(const std::string&) override {
    return ullage::files::FileStatus{.is_regular = true,
                                     .size = static_cast<std::int64_t>(bytes_.size())};
  }

 private:
  class Open final : public ullage::files::ReadableFile {
   public:
    Open(std::string path, const std::string& bytes)
        : ReadableFile(std::move(path), static_cast<std::int64_t>(bytes.size())), bytes_(bytes) {}
    ullage::files::Transfer ReadSome(std::int64_t offset, void* out,
                                     std::size_t bytes) const override {
      const std::size_t moved =
          bytes_.copy(static_cast<char*>(out), bytes, static_cast<std::size_t>(offset));
      return {moved, 0};
    }

   private:
    const std::string& bytes_;
  };

  [[noreturn]] static void Refuse(const std::string& path) {
    ullage::files::ThrowErrno(path, "cannot be changed", EROFS);
  }

  std::string bytes_;
};

}  // namespace testsupport
