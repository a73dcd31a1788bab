// Where the pages of a range of memory shall come from on machines of several memory nodes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ullage::tiers {

inline constexpr int kFirstTouch = -1;  // the node of the thread that touches a page first
inline constexpr int kInterleave = -2;  // pages in turn from all nodes

// "0-3,8" -> {0, 1, 2, 3, 8}: the form of the lists in /sys/devices/system/node. Text of another
// form gives an empty list.
std::vector<int> ParseNodeList(std::string_view text);

// The nodes of this machine that have memory; {0} where the system does not tell.
std::vector<int> MemoryNodes();

// Makes pages of [start, start + bytes) that are touched later come from `node`, a number, or
// kInterleave. A node that is full is helped out by others. Does nothing for kFirstTouch or on a
// machine of one node. Returns "" or the reason of the kernel's refusal; containers often refuse.
// Throws ConfigError for a node that this machine does not have. `start` is aligned to a page.
std::string PlacePages(void* start, std::size_t bytes, int node);

}  // namespace ullage::tiers
