#include "tiers/disk_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace ullage::tiers {
namespace {

const char* Remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space there or offload to a folder on another disk, then run again";
    case EIO:
      return "the device reports a fault: see the kernel log, and offload to another disk";
    case ENOMEM:
    case EAGAIN:
    case EBUSY:
      return "the system lacks memory for it: free host memory, or use a smaller queue depth";
    case ENODATA:
      return "another program has cut the file: keep others out of the offload folder";
    default:
      return "see the kernel log, or offload to another disk";
  }
}

}  // namespace

IoError DiskError(const std::string& path, const char* action, std::int64_t offset,
                  std::int64_t bytes, int error) {
  const char* reason = error == ENODATA ? "the file ends before" : std::strerror(error);
  return IoError(
      fmt::format("{}: cannot {} {} bytes at offset {}: {}", path, action, bytes, offset, reason),
      Remedy(error));
}

}  // namespace ullage::tiers
