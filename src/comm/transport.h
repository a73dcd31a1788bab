// The plain collectives under a Comm: no fingerprints, no checks, one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/socket.h"

namespace ullage::comm {

enum class Reduction { kSum, kMin, kMax };

// All calls block until every rank has made them, and throw Problem when the library reports an
// error, and what `tick` throws. After either, the spans are not touched any more and the
// transport is good for nothing but to be destroyed. Spans are not empty.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void AllReduce(std::span<std::int64_t> values, Reduction reduction, const Tick& tick) = 0;
  virtual void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                         const Tick& tick) = 0;
  virtual void Broadcast(std::span<std::byte> bytes, int root, const Tick& tick) = 0;
  virtual void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                        const Tick& tick) = 0;
  // Closes the connections, so that peers that wait for this rank fail at once. Not while another
  // call is under way.
  virtual void Close() noexcept = 0;
};

}  // namespace ullage::comm
