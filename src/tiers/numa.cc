#include "tiers/numa.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <fstream>

#include "ullage/error.h"

namespace ullage::tiers {
namespace {

constexpr int kMaxNodes = 1024;  // of Linux, on every architecture

// Moves `text` behind the number at its start; -1 when none in range is there.
int TakeNumber(std::string_view& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= kMaxNodes) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::vector<int> ParseNodeList(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<int> nodes;
  while (!text.empty()) {
    const int first = TakeNumber(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = TakeNumber(text);
    }
    if (first < 0 || last < first) return {};
    for (int node = first; node <= last; ++node) nodes.push_back(node);
    if (text.empty()) break;
    if (!text.starts_with(',')) return {};
    text.remove_prefix(1);
  }
  return nodes;
}

std::vector<int> MemoryNodes() {
  std::ifstream file("/sys/devices/system/node/has_memory");
  std::string line;
  std::getline(file, line);
  std::vector<int> nodes = ParseNodeList(line);
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

std::string PlacePages(void* start, std::size_t bytes, int node) {
  if (node == kFirstTouch || bytes == 0) return "";
  const std::vector<int> nodes = MemoryNodes();
  if (node != kInterleave && std::ranges::find(nodes, node) == nodes.end()) {
    throw ConfigError(fmt::format("memory node {} does not exist on this machine", node),
                      fmt::format("its nodes with memory are {}", fmt::join(nodes, ", ")));
  }
  if (nodes.size() == 1) return "";

  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[kMaxNodes / kWordBits] = {};
  for (const int n : nodes) {
    const auto bit = static_cast<std::size_t>(n);
    if (node == kInterleave || n == node) mask[bit / kWordBits] |= 1UL << (bit % kWordBits);
  }
  // Preferred and not bound: a full node would otherwise end the process.
  const int mode = node == kInterleave ? MPOL_INTERLEAVE : MPOL_PREFERRED;
  // The kernel reads one bit less than it is told.
  if (::syscall(SYS_mbind, start, bytes, mode, mask, kMaxNodes + 1, 0) != 0) {
    return std::strerror(errno);
  }
  return "";
}

}  // namespace ullage::tiers
