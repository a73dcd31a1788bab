// The collectives of one group of ranks, without torch in sight: spans of bytes and integers.
//
// Every collective begins with the exchange of a 16-byte fingerprint over a path of its own
// (status_page.h within a host, wire.h between hosts), which can be given up at any moment.
// When ranks disagree about what they are doing, all of them throw CommError with both positions;
// when a rank dies or does not answer within the timeout, the others throw CommError with the
// rank, the operation and the position. After that the group is unusable: Abort() was called.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/window.h"

namespace ullage::comm {

enum class Kind : std::uint32_t {
  kBarrier = 1,
  kAllReduceSum,
  kAllReduceMin,
  kAllReduceMax,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kExchangeSlices,
  kCreateWindow,
};

std::string_view Name(Kind kind);

// What a rank is about to do. Equal on all ranks, or they have diverged.
struct Fingerprint {
  Kind kind;
  std::uint32_t item;      // what it is about, as the caller numbers it (a unit, a bucket, a step)
  std::uint64_t sequence;  // how many collectives came before on this group
};
static_assert(sizeof(Fingerprint) == 16);

class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Ranks of the same host (or the same process) as this one; peers outside are reached by the
  // network only.
  virtual bool IsLocal(int rank) const = 0;
  bool AllLocal() const;
  virtual std::chrono::milliseconds timeout() const = 0;

  // All of these block until every rank has called them, and run on the calling thread, one at a
  // time. `item` goes into the fingerprint. Spans of the wrong size throw ConfigError.
  virtual void Barrier(std::uint32_t item) = 0;
  virtual void AllReduceSum(std::span<std::int64_t> values, std::uint32_t item) = 0;
  virtual void AllReduceMin(std::span<std::int64_t> values, std::uint32_t item) = 0;
  virtual void AllReduceMax(std::span<std::int64_t> values, std::uint32_t item) = 0;
  // `all` holds world_size() times `mine`, in rank order.
  virtual void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                         std::uint32_t item) = 0;
  virtual void Broadcast(std::span<std::byte> bytes, int root, std::uint32_t item) = 0;
  // send and receive hold world_size() chunks of `chunk_bytes`; chunk i of `send` goes to rank i,
  // chunk i of `receive` came from rank i. They must not overlap.
  virtual void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                        std::int64_t chunk_bytes, std::uint32_t item) = 0;

  // Collective: every rank gets its own window of `bytes` bytes (zero-filled, may differ between
  // ranks) with `words` signal words, and sees those of its peers. The window must be destroyed
  // before the Comm. `bytes` may be 0.
  virtual std::unique_ptr<Window> CreateWindow(std::int64_t bytes, int words) = 0;

  // Makes every rank's blocked or later call on this group fail promptly with `reason`. Idempotent,
  // thread-safe, never throws. Called by the engine when it fails and by the destructor of a group
  // that failed.
  virtual void Abort(const std::string& reason) noexcept = 0;
};

// One rank alone: every collective is the identity.
std::unique_ptr<Comm> MakeSingleComm();

// Rank `rank` of `world_size` ranks that do not exist, for dry runs: collectives return at once,
// windows hold no memory (data() is null) and reads leave their destination as it is. AllGather
// repeats `mine`.
std::unique_ptr<Comm> MakeFakeComm(int rank, int world_size);

}  // namespace ullage::comm
