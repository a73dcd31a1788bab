#include "tiers/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace ullage::tiers {
namespace {

// The names that the two versions of control groups have for the same things.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  // keys of memory.stat: page cache, which the kernel gives back first
  const char* active_file;
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file", "total_active_file"};

// The number that is the whole of a file; nothing for "max" or where there is no such file.
std::optional<std::int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// The number behind `key` in a file of lines "key number".
std::optional<std::int64_t> NumberOf(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t number = 0;
    if (word == key) return file >> number ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

void Lower(AvailableMemory& available, std::int64_t bytes, const std::string& bound) {
  if (bytes < available.bytes) available = {std::max<std::int64_t>(bytes, 0), bound};
}

// A limit holds for the group that has it and all below, so each parent counts. Where only a part
// of the hierarchy is mounted, as in a container, the folders that are missing are passed over.
void LowerToGroups(AvailableMemory& available, const std::string& mount, std::string group,
                   const GroupFiles& files) {
  while (true) {
    const std::string folder = mount + group + (group.ends_with('/') ? "" : "/");
    const auto limit = NumberIn(folder + files.limit);
    const auto usage = NumberIn(folder + files.usage);
    if (limit && usage) {
      const std::string stat = folder + "memory.stat";
      const std::int64_t cache = NumberOf(stat, files.inactive_file).value_or(0) +
                                 NumberOf(stat, files.active_file).value_or(0);
      Lower(available, *limit - std::max<std::int64_t>(*usage - cache, 0),
            "the memory limit of the control group " + (group.empty() ? "/" : group));
    }
    const std::size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return;
    group.resize(slash);
  }
}

bool HasMemory(std::string_view controllers) {
  return ("," + std::string(controllers) + ",").find(",memory,") != std::string::npos;
}

}  // namespace

AvailableMemory FindAvailableMemory(const std::string& root) {
  AvailableMemory available{std::numeric_limits<std::int64_t>::max(), "nothing known"};
  if (const auto kib = NumberOf(root + "/proc/meminfo", "MemAvailable:")) {
    Lower(available, *kib * 1024, "MemAvailable of this host");
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      LowerToGroups(available, root + "/sys/fs/cgroup", path, kVersion2);
    } else if (HasMemory(controllers)) {
      LowerToGroups(available, root + "/sys/fs/cgroup/memory", path, kVersion1);
    }
  }
  return available;
}

}  // namespace ullage::tiers
