#include "files/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::files {
namespace {

const char* HintFor(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and of its folder";
    case ENOSPC:
    case EDQUOT:
      return "free space there or write to another disk";
    case EROFS:
      return "this file system is read-only: write elsewhere";
    case EMFILE:
      return "raise the limit on open files (ulimit -n)";
    case EISDIR:
    case ENOTDIR:
      return "a file stands where a folder is needed, or the other way round";
    case EIO:
      return "the disk or the network file system failed: check it (dmesg) and try again";
    default:
      return "";
  }
}

}  // namespace

void ThrowErrno(const std::string& path, const std::string& action, int error) {
  throw IoError(fmt::format("{}: {}: {}", path, action, std::strerror(error)), HintFor(error));
}

std::string ParentOf(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void ReadableFile::ReadAt(std::int64_t offset, void* out, std::int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset) {
    throw IoError(fmt::format("{}: asked for {} bytes at byte {}, but the file has {} bytes", path_,
                              bytes, offset, size_),
                  "the file is truncated: fetch it again");
  }
  auto* to = static_cast<char*>(out);
  std::int64_t done = 0;
  while (done < bytes) {
    const Transfer moved =
        ReadSome(offset + done, to + done, static_cast<std::size_t>(bytes - done));
    if (moved.error == EINTR) continue;
    if (moved.error != 0) {
      ThrowErrno(path_, fmt::format("cannot read {} bytes at byte {}", bytes - done, offset + done),
                 moved.error);
    }
    if (moved.bytes == 0) {
      throw IoError(fmt::format("{}: ends at byte {}, had {} bytes when it was opened", path_,
                                offset + done, size_),
                    "another program changed the file while it was read");
    }
    done += static_cast<std::int64_t>(moved.bytes);
  }
}

void WritableFile::Append(const void* data, std::int64_t bytes) {
  WriteAt(end_, data, bytes);
}

void WritableFile::WriteAt(std::int64_t offset, const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  std::int64_t done = 0;
  while (done < bytes) {
    const Transfer moved =
        WriteSome(offset + done, from + done, static_cast<std::size_t>(bytes - done));
    if (moved.error == EINTR) continue;
    // No progress without an errno would loop for ever; it is what a full device looks like.
    const int error = moved.error == 0 && moved.bytes == 0 ? ENOSPC : moved.error;
    if (error != 0) {
      ThrowErrno(path_,
                 fmt::format("cannot write {} bytes at byte {}", bytes - done, offset + done),
                 error);
    }
    done += static_cast<std::int64_t>(moved.bytes);
    end_ = std::max(end_, offset + done);
  }
}

void WritableFile::Sync() {
  if (const int error = TrySync()) {
    ThrowErrno(path_, fmt::format("cannot bring {} bytes to the disk", end_), error);
  }
}

void WritableFile::Close() {
  if (const int error = TryClose()) ThrowErrno(path_, "cannot close", error);
}

void FileSystem::RemoveTree(const std::string& path) {
  const std::optional<FileStatus> status = Stat(path);
  if (!status) return;
  if (status->is_directory && !status->is_link) {
    for (const std::string& name : List(path)) RemoveTree(path + "/" + name);
  }
  Remove(path);
}

void FileSystem::CreateDirectories(const std::string& path) {
  const std::optional<FileStatus> status = Stat(path);
  if (status && status->is_directory) return;
  if (!status) {
    const std::string parent = ParentOf(path);
    if (parent != path) CreateDirectories(parent);
  }
  CreateDirectory(path);
}

std::string FileSystem::ReadText(const std::string& path, std::int64_t limit_bytes) {
  const std::unique_ptr<ReadableFile> file = OpenForRead(path);
  if (file->size() > limit_bytes) {
    throw IoError(
        fmt::format("{}: has {} bytes, at most {} were expected", path, file->size(), limit_bytes),
        "this is not the file it is named as");
  }
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->ReadAt(0, text.data(), file->size());
  return text;
}

}  // namespace ullage::files
