#include "tiers/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "base/bytes.h"
#include "base/log.h"
#include "tiers/disk_error.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

constexpr std::int64_t kAllocatePiece = std::int64_t{1} << 30;
constexpr std::int64_t kZeroPiece = std::int64_t{1} << 20;

using AlignedBytes = std::unique_ptr<std::byte, decltype(&std::free)>;

AlignedBytes AlignedZeros(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  AlignedBytes memory(static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, size)), std::free);
  if (memory == nullptr) {
    throw OutOfMemoryError(fmt::format("no host memory for {} bytes of staging", bytes),
                           "free host memory");
  }
  std::memset(memory.get(), 0, size);
  return memory;
}

int RetryOpen(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

bool IsLocked(int fd, int operation) {
  while (::flock(fd, operation) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// Whether `path` still names the file that is open.
bool Names(const std::string& path, int fd) {
  struct stat named {};
  struct stat open {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(fd, &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

// Deletes the file when nobody has it locked; returns the space that gave back.
std::int64_t RemoveIfStale(const std::string& path) {
  // O_NONBLOCK: opening a pipe of this name would otherwise wait for a writer.
  const int fd = RetryOpen(path, O_RDWR | O_NONBLOCK);
  if (fd < 0) return 0;
  struct stat status {};
  std::int64_t freed = 0;
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
      IsLocked(fd, LOCK_EX | LOCK_NB) && Names(path, fd) && ::unlink(path.c_str()) == 0) {
    freed = std::max<std::int64_t>(status.st_blocks * 512, 1);
  }
  ::close(fd);
  return freed;
}

void RemoveStale(const std::string& folder) {
  constexpr const char* kForm = "ullage-rank[0-9]*-pid[0-9]*-[0-9]*.offload";
  std::error_code error;
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (::fnmatch(kForm, entry->path().filename().c_str(), 0) != 0) continue;
    const std::int64_t freed = RemoveIfStale(entry->path().string());
    files += freed > 0 ? 1 : 0;
    bytes += freed;
  }
  if (files > 0) {
    LogInfo("tiers", fmt::format("{}: deleted {} file(s) of {} that killed runs left behind",
                                 folder, files, FormatBytes(bytes)));
  }
}

// Nothing where the file system does not count its space.
std::optional<std::int64_t> FreeBytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

[[noreturn]] void ThrowFull(const std::string& folder, std::int64_t bytes, const char* reason) {
  const auto free = FreeBytes(folder);
  throw IoError(
      fmt::format("{}: {} ({} bytes) requested for offloaded state, {} free: {}", folder,
                  FormatBytes(bytes), bytes, free ? FormatBytes(*free) : "unknown", reason),
      "free space there, name a folder on another disk, or keep more in host memory "
      "(\"device\": \"cpu\")");
}

int FillWithZeros(int fd, std::int64_t bytes) {
  const AlignedBytes zeros = AlignedZeros(kZeroPiece);
  for (std::int64_t at = 0; at < bytes;) {
    const auto size = static_cast<std::size_t>(std::min(kZeroPiece, bytes - at));
    const ssize_t written = ::pwrite(fd, zeros.get(), size, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    at += written;
  }
  return 0;
}

bool IsAbsent(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

// Writes a block of zeros from memory that is aligned to `alignment` and to nothing larger.
int TryDirectWrite(int fd, std::int64_t alignment) {
  const AlignedBytes zeros = AlignedZeros(2 * kDiskBlock);
  const std::byte* start = zeros.get() + (alignment % kDiskBlock);
  ssize_t written = 0;
  do {
    written = ::pwrite(fd, start, kDiskBlock, 0);
  } while (written < 0 && errno == EINTR);
  return written == kDiskBlock ? 0 : written < 0 ? errno : EIO;
}

}  // namespace

ScratchFileCalls SystemScratchFileCalls() {
  return {[](int fd, std::int64_t offset, std::int64_t bytes) {
            return ::fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
          },
          [](int fd) {
            const int flags = ::fcntl(fd, F_GETFL);
            return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_DIRECT) == 0 ? 0 : errno;
          }};
}

ScratchFile::ScratchFile(const std::string& folder, int rank, std::int64_t bytes, bool direct,
                         const ScratchFileCalls& calls)
    : bytes_((bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock) {
  RemoveStale(folder);
  Create(folder, rank);
  try {
    Allocate(folder, calls);
    if (direct && bytes_ > 0) MakeDirect(calls);
  } catch (...) {
    Delete();
    throw;
  }
}

ScratchFile::~ScratchFile() {
  Delete();
}

void ScratchFile::Delete() {
  if (Names(path_, fd_)) ::unlink(path_.c_str());
  ::close(fd_);
}

void ScratchFile::Create(const std::string& folder, int rank) {
  constexpr int kNumbers = 1000;
  for (int number = 0; number < kNumbers; ++number) {
    path_ = fmt::format("{}/ullage-rank{}-pid{}-{}.offload", folder, rank, ::getpid(), number);
    fd_ = RetryOpen(path_, O_RDWR | O_CREAT | O_EXCL);
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0) {
      throw IoError(fmt::format("{}: cannot create: {}", path_, std::strerror(errno)),
                    "offload to an existing folder that this user may write to");
    }
    // Another rank that looks for stale files can have been faster and deleted it. Where there are
    // no locks nobody deletes.
    if (!IsLocked(fd_, LOCK_EX) || Names(path_, fd_)) return;
    ::close(fd_);
  }
  throw IoError(fmt::format("{}: this name and those with smaller numbers are taken", path_),
                "delete files called ullage-rank*.offload that no run uses");
}

void ScratchFile::Allocate(const std::string& folder, const ScratchFileCalls& calls) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<std::uint64_t>(bytes_) > limit.rlim_cur) {
    throw IoError(fmt::format("{}: {} requested for offloaded state, but this process may write "
                              "files of {} only",
                              path_, FormatBytes(bytes_),
                              FormatBytes(static_cast<std::int64_t>(limit.rlim_cur))),
                  "raise the limit on file sizes (ulimit -f)");
  }
  // Asked first: filling the disk to find out would harm others on it.
  if (const auto free = FreeBytes(folder); free && bytes_ > *free) {
    ThrowFull(folder, bytes_, std::strerror(ENOSPC));
  }
  // In pieces, because a signal can undo a piece.
  for (std::int64_t at = 0; at < bytes_;) {
    const std::int64_t size = std::min(kAllocatePiece, bytes_ - at);
    int error = calls.allocate(fd_, at, size);
    if (error == EINTR) continue;
    if (error != 0 && IsAbsent(error)) {
      error = FillWithZeros(fd_, bytes_);
      at = bytes_;
    }
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
      ThrowFull(folder, bytes_, std::strerror(error));
    }
    if (error != 0) ThrowDiskError(path_, "allocate", at, size, error);
    at += size;
  }
}

void ScratchFile::MakeDirect(const ScratchFileCalls& calls) {
  int error = calls.set_direct(fd_);
  if (error == 0) {
    // File systems and devices differ in what they demand of addresses, and tell late.
    for (const std::int64_t alignment : {std::int64_t{64}, std::int64_t{512}, kDiskBlock}) {
      error = TryDirectWrite(fd_, alignment);
      if (error == 0) {
        direct_ = true;
        memory_alignment_ = alignment;
        return;
      }
      if (error != EINVAL) ThrowDiskError(path_, "write", 0, kDiskBlock, error);
    }
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags < 0 || ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) != 0) {
      ThrowDiskError(path_, "leave O_DIRECT for", 0, bytes_, errno);
    }
  }
  LogWarn("tiers", fmt::format("{}: this file system has no O_DIRECT ({}), so offloaded state also "
                               "passes through the page cache, which is slower",
                               path_, std::strerror(error)));
}

}  // namespace ullage::tiers
