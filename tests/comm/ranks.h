// Short ways to a Comm for the tests of this room.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/connect.h"
#include "support/run_ranks.h"
#include "ullage/error.h"

namespace ullage::comm {

using std::chrono::milliseconds;
using testsupport::Rank;
using testsupport::RunOnRanks;
using testsupport::RunOnThreads;

constexpr milliseconds kLong{20'000};
// What counts as prompt beside it, on a machine that is busy with other things.
constexpr double kPromptSeconds = 8;

inline std::unique_ptr<Comm> ConnectRank(const Rank& rank, milliseconds timeout = kLong) {
  return Connect({.rank = rank.rank,
                  .world_size = rank.world_size,
                  .local_rank = rank.rank,
                  .store = "file:" + rank.store_path},
                 timeout);
}

using CommBody = std::function<void(Comm&)>;

// `body` on `world_size` threads, each with its Comm.
inline void OnThreads(int world_size, const CommBody& body, milliseconds timeout = kLong) {
  auto comms = ConnectThreads(world_size, timeout);
  RunOnThreads(world_size, [&](int rank) {
    body(*comms[rank]);
    comms[rank].reset();
  });
}

inline void OnProcesses(int world_size, const CommBody& body, milliseconds timeout = kLong) {
  RunOnRanks(world_size, [&](const Rank& rank) { body(*ConnectRank(rank, timeout)); });
}

template <class T>
std::span<std::byte> AsBytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

// What the call says when it fails; empty when it does not.
inline std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace ullage::comm
