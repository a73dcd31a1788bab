#include "comm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

constexpr const char* kMakeRoom =
    "free host memory or raise the memory limit of this container; more ranks make each rank's "
    "share smaller";

[[noreturn]] void ThrowOutOfMemory(const std::string& name, std::int64_t bytes, const char* step,
                                   int error) {
  throw OutOfMemoryError(fmt::format("shared memory for {}: {} ({} bytes) refused by {}: {}", name,
                                     FormatBytes(bytes), bytes, step, std::strerror(error)),
                         kMakeRoom);
}

// The number after `key` in a small file of lines; the first number when `key` is empty.
std::optional<std::int64_t> NumberIn(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (!key.empty() && word != key) continue;
    std::int64_t number = 0;
    if (key.empty()) file.seekg(0);
    if (file >> number) return number;
    return std::nullopt;  // "max"
  }
  return std::nullopt;
}

// The system grants any size and kills a process when the pages run out, so what cannot fit is
// refused here.
void CheckAvailable(const std::string& name, std::int64_t bytes) {
  const char* meminfo = "/proc/meminfo";
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  if (const auto kib = NumberIn(meminfo, "MemAvailable:")) {
    available = (*kib + NumberIn(meminfo, "SwapFree:").value_or(0)) * 1024;
  }
  if (const auto limit = NumberIn("/sys/fs/cgroup/memory.max", "")) {
    available = std::min(available, *limit);
  }
  if (bytes > available) {
    throw OutOfMemoryError(
        fmt::format("shared memory for {}: {} ({} bytes) requested, {} available on this host",
                    name, FormatBytes(bytes), bytes, FormatBytes(available)),
        kMakeRoom);
  }
}

// Takes the pages now, because one that cannot be had later ends the process with SIGBUS. In
// pieces, because a signal undoes a piece.
void Reserve(const std::string& name, int fd, std::int64_t bytes) {
  constexpr std::int64_t kPiece = std::int64_t{256} << 20;
  for (std::int64_t at = 0; at < bytes;) {
    const std::int64_t size = std::min(kPiece, bytes - at);
    if (::fallocate(fd, 0, at, size) == 0) {
      at += size;
    } else if (errno != EINTR) {
      ThrowOutOfMemory(name, bytes, "fallocate", errno);
    }
  }
}

std::byte* MapOrThrow(const std::string& name, std::int64_t bytes, int flags, int fd) {
  void* address =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) ThrowOutOfMemory(name, bytes, "mmap", errno);
  return static_cast<std::byte*>(address);
}

}  // namespace

std::int64_t RoundUpToPage(std::int64_t bytes) {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

OwnedRegion OwnedRegion::Shared(const std::string& name, std::int64_t bytes) {
  OwnedRegion region;
  region.bytes_ = RoundUpToPage(bytes);
  if (region.bytes_ == 0) return region;
  CheckAvailable(name, region.bytes_);
  region.fd_ = Descriptor(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!region.fd_.valid()) ThrowOutOfMemory(name, region.bytes_, "memfd_create", errno);
  if (::ftruncate(region.fd_.get(), region.bytes_) != 0) {
    ThrowOutOfMemory(name, region.bytes_, "ftruncate", errno);
  }
  Reserve(name, region.fd_.get(), region.bytes_);
  // A region that cannot shrink never faults in a reader.
  ::fcntl(region.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  region.data_ = MapOrThrow(name, region.bytes_, MAP_SHARED, region.fd_.get());
  return region;
}

OwnedRegion OwnedRegion::Private(const std::string& name, std::int64_t bytes) {
  OwnedRegion region;
  region.bytes_ = RoundUpToPage(bytes);
  if (region.bytes_ == 0) return region;
  region.data_ = MapOrThrow(name, region.bytes_, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  return region;
}

OwnedRegion::OwnedRegion(OwnedRegion&& other) noexcept {
  *this = std::move(other);
}

OwnedRegion& OwnedRegion::operator=(OwnedRegion&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

OwnedRegion::~OwnedRegion() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

Mapping::Mapping(Mapping&& other) noexcept {
  *this = std::move(other);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(bytes_));
  }
}

PeerRegion::PeerRegion(const ProcessId& process, int fd, std::int64_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process.pid, fd);
  fd_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_.valid()) {
    throw CommError(
        fmt::format("cannot open the shared memory of process {} at {}: {}", process.pid, path,
                    std::strerror(errno)),
        "the ranks of a host must run as the same user in the same pid namespace; if they cannot, "
        "set ULLAGE_HOST_ID to a different value for each, so that they talk over TCP");
  }
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0 || status.st_size < bytes) {
    throw CommError(
        fmt::format("the shared memory of process {} at {} holds {} bytes, not {}", process.pid,
                    path, static_cast<std::int64_t>(status.st_size), bytes),
        "that process has probably ended; see its own output");
  }
}

Mapping PeerRegion::Map(std::int64_t offset, std::int64_t bytes) const {
  if (bytes == 0) return {};
  void* address =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, fd_.get(), offset);
  if (address == MAP_FAILED) {
    throw CommError(fmt::format("cannot map {} bytes of a peer's shared memory: {}", bytes,
                                std::strerror(errno)),
                    "raise the limit on address space (ulimit -v)");
  }
  return {static_cast<const std::byte*>(address), bytes};
}

void PeerRegion::Read(std::int64_t offset, std::span<std::byte> destination) const {
  while (!destination.empty()) {
    const ssize_t got = ::pread(fd_.get(), destination.data(), destination.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw CommError(
          fmt::format("reading {} bytes at {} of a peer's shared memory: {}", destination.size(),
                      offset, got == 0 ? "end of region" : std::strerror(errno)),
          "this is a fault of the machine or of this library; please report it");
    }
    destination = destination.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

}  // namespace ullage::comm
