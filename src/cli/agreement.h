// What the ranks of a run tell each other beside the engine: whether all got ready, and small
// numbers that all of them need.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "comm/comm.h"

namespace ullage::cli {

// Another rank failed and has said why; nothing more is to be printed here.
class FailedElsewhere : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

// Collective: runs `body` on every rank. When it throws on some, rank 0 throws the error of the
// first of them and every other rank FailedElsewhere, so that one message is printed however many
// ranks met the same mistake.
void Together(comm::Comm& comm, const std::function<void()>& body);

// Numbers of this room's collectives, which the fingerprints carry.
enum class Item : std::uint32_t { kReady = 0x43000000, kStep, kEvaluation, kReport };

// Collective: everybody's `mine`, equally many on every rank, rank after rank.
template <typename T>
std::vector<T> FromAllRanks(comm::Comm& comm, std::span<const T> mine, Item item) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(mine.size() * static_cast<std::size_t>(comm.world_size()));
  comm.AllGather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)),
                 static_cast<std::uint32_t>(item));
  return all;
}

template <typename T>
std::vector<T> FromAllRanks(comm::Comm& comm, const T& mine, Item item) {
  return FromAllRanks(comm, std::span<const T>(&mine, 1), item);
}

}  // namespace ullage::cli
