// PosixFileSystem: each operation is one system call or a few.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "files/file_system.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

// A file descriptor and its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  int Close() {
    if (fd_ < 0) return 0;
    const int result = close(fd_);
    fd_ = -1;  // on Linux the descriptor is gone even when close() failed
    return result == 0 ? 0 : errno;
  }

 private:
  int fd_;
};

int Open(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

Transfer Moved(ssize_t result) {
  return result < 0 ? Transfer{0, errno} : Transfer{static_cast<std::size_t>(result), 0};
}

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string path, std::int64_t size, int fd)
      : ReadableFile(std::move(path), size), fd_(fd) {}

  Transfer ReadSome(std::int64_t offset, void* out, std::size_t bytes) const override {
    return Moved(pread(fd_.get(), out, bytes, offset));
  }

 private:
  Descriptor fd_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, std::int64_t end, int fd)
      : WritableFile(std::move(path), end), fd_(fd) {}

  Transfer WriteSome(std::int64_t offset, const void* data, std::size_t bytes) override {
    const Transfer moved = Moved(pwrite(fd_.get(), data, bytes, offset));
    StartWriting(offset + static_cast<std::int64_t>(moved.bytes));
    return moved;
  }
  int TrySync() override { return fsync(fd_.get()) == 0 ? 0 : errno; }
  int TryClose() override { return fd_.Close(); }

 private:
  // The device writes the first part of a large file while the next is made, instead of all of it
  // at the end. Where the system cannot, Sync does it all.
  void StartWriting(std::int64_t end) {
    constexpr std::int64_t kPart = 8 << 20;
    if (end < started_ + kPart) return;
    sync_file_range(fd_.get(), started_, end - started_, SYNC_FILE_RANGE_WRITE);
    started_ = end;
  }

  Descriptor fd_;
  std::int64_t started_ = 0;
};

std::unique_ptr<WritableFile> OpenForWrite(const std::string& path, int flags) {
  const int fd = Open(path, O_WRONLY | O_CREAT | flags);
  if (fd < 0) ThrowErrno(path, "cannot open for writing", errno);
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    const int error = errno;
    close(fd);
    ThrowErrno(path, "cannot look at", error);
  }
  return std::make_unique<PosixWritableFile>(path, status.st_size, fd);
}

}  // namespace

std::unique_ptr<ReadableFile> PosixFileSystem::OpenForRead(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
  const int fd = Open(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) ThrowErrno(path, "cannot open", errno);
  struct stat status {};
  const int error = fstat(fd, &status) != 0 ? errno : 0;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    close(fd);
    if (error != 0) ThrowErrno(path, "cannot look at", error);
    throw IoError(path + ": is not a regular file", "name a file, not a folder, pipe or device");
  }
  return std::make_unique<PosixReadableFile>(path, status.st_size, fd);
}

std::unique_ptr<WritableFile> PosixFileSystem::Create(const std::string& path) {
  return OpenForWrite(path, O_TRUNC);
}

std::unique_ptr<WritableFile> PosixFileSystem::OpenForAppend(const std::string& path) {
  return OpenForWrite(path, 0);
}

void PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) ThrowErrno(from, "cannot rename to " + to, errno);
}

bool PosixFileSystem::Exchange(const std::string& a, const std::string& b) {
  // By number: glibc before 2.28 and musl have no wrapper.
  if (syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  ThrowErrno(a, "cannot exchange with " + b, errno);
}

void PosixFileSystem::SyncDirectory(const std::string& path) {
  const Descriptor fd(Open(path, O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) ThrowErrno(path, "cannot open the folder", errno);
  // Some network file systems cannot sync a directory and say EINVAL; they order by themselves.
  if (fsync(fd.get()) != 0 && errno != EINVAL) {
    ThrowErrno(path, "cannot bring the folder to the disk", errno);
  }
}

void PosixFileSystem::CreateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0) ThrowErrno(path, "cannot make the folder", errno);
}

void PosixFileSystem::Remove(const std::string& path) {
  if (remove(path.c_str()) != 0) ThrowErrno(path, "cannot remove", errno);
}

std::vector<std::string> PosixFileSystem::List(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (!directory) ThrowErrno(path, "cannot list", errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) ThrowErrno(path, "cannot list", errno);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FileStatus> PosixFileSystem::Stat(const std::string& path) {
  struct stat status {};
  FileStatus result;
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    ThrowErrno(path, "cannot look at", errno);
  }
  if (S_ISLNK(status.st_mode)) {
    result.is_link = true;
    // A dangling link exists and is neither file nor directory.
    if (stat(path.c_str(), &status) != 0) return result;
  }
  result.is_directory = S_ISDIR(status.st_mode);
  result.is_regular = S_ISREG(status.st_mode);
  result.size = status.st_size;
  return result;
}

}  // namespace ullage::files
