#include "memory/process.h"

#include <fstream>
#include <string>

namespace ullage::memory {
namespace {

std::int64_t StatusKilobytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::int64_t kilobytes = 0;
    if (word == key && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t ResidentBytes() {
  return StatusKilobytes("VmRSS:");
}
std::int64_t PeakResidentBytes() {
  return StatusKilobytes("VmHWM:");
}

}  // namespace ullage::memory
