// The text of errors of the disk tier.
#pragma once

#include <cstdint>
#include <string>

#include "ullage/error.h"

namespace ullage::tiers {

// "<path>: cannot <action> <bytes> bytes at offset <offset>: <reason>", with the remedy for the
// errno.
IoError DiskError(const std::string& path, const char* action, std::int64_t offset,
                  std::int64_t bytes, int error);

[[noreturn]] inline void ThrowDiskError(const std::string& path, const char* action,
                                        std::int64_t offset, std::int64_t bytes, int error) {
  throw DiskError(path, action, offset, bytes, error);
}

}  // namespace ullage::tiers
