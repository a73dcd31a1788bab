// What the operating system says this process holds.
#pragma once

#include <cstdint>

namespace ullage::memory {

// Resident bytes now and at most (VmRSS, VmHWM). 0 where /proc does not tell.
std::int64_t ResidentBytes();
std::int64_t PeakResidentBytes();

}  // namespace ullage::memory
