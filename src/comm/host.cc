#include "comm/host.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "comm/descriptor.h"

namespace ullage::comm {
namespace {

// The text of a small file in /proc; nothing, with errno set, when it cannot be read.
std::optional<std::string> ReadSmallFile(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  char buffer[1024];
  const ssize_t got = ::read(file.get(), buffer, sizeof(buffer));
  if (got < 0) return std::nullopt;
  return std::string(buffer, static_cast<std::size_t>(got));
}

struct Stat {
  char state = '?';
  std::uint64_t start_time = 0;
};

// Fields 3 and 22 of /proc/PID/stat. The name in field 2 may hold anything, so the fields are
// counted from the last parenthesis.
std::optional<Stat> ReadStat(std::int32_t pid) {
  const auto text = ReadSmallFile(fmt::format("/proc/{}/stat", pid));
  if (!text) return std::nullopt;
  std::size_t at = text->rfind(')');
  if (at == std::string::npos || at + 2 >= text->size()) return std::nullopt;
  at += 2;
  Stat stat;
  stat.state = (*text)[at];
  for (int field = 3; field < 22; ++field) {
    at = text->find(' ', at);
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  stat.start_time = std::strtoull(text->c_str() + at, nullptr, 10);
  return stat;
}

std::string LinkTarget(const char* path) {
  char target[128];
  const ssize_t size = ::readlink(path, target, sizeof(target));
  return size < 0 ? std::string("?") : std::string(target, static_cast<std::size_t>(size));
}

}  // namespace

ProcessId ThisProcess() {
  const auto pid = static_cast<std::int32_t>(::getpid());
  const auto stat = ReadStat(pid);
  return {pid, stat ? stat->start_time : 0};
}

bool IsAlive(const ProcessId& process) {
  errno = 0;
  const auto stat = ReadStat(process.pid);
  if (!stat) return errno != ENOENT && errno != ESRCH;
  if (stat->state == 'Z' || stat->state == 'X') return false;
  return process.start_time == 0 || stat->start_time == process.start_time;
}

std::string MachineId() {
  std::string boot = ReadSmallFile("/proc/sys/kernel/random/boot_id").value_or("?");
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  return fmt::format("{} {} {}", boot, LinkTarget("/proc/self/ns/pid"),
                     LinkTarget("/proc/self/ns/net"));
}

std::string HostId() {
  const char* forced = std::getenv("ULLAGE_HOST_ID");
  return forced != nullptr && *forced != '\0' ? std::string(forced) : MachineId();
}

}  // namespace ullage::comm
