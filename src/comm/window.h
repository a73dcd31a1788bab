// One-sided access to the memory of peers.
//
// A window is one region of memory for each rank, created by all ranks together. Its owner
// writes; peers read when *they* need the bytes, without the owner's code taking part. On one
// host the region is shared memory (a memfd); between hosts a service thread of the owner
// answers reads over TCP. Signal words order the accesses: the owner writes bytes, then raises a
// word with release order; a reader waits for the word with acquire order, then reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ullage::comm {

class Window {
 public:
  virtual ~Window() = default;

  // This rank's own region: page aligned, zero at creation. Null when the window holds no memory
  // (dry run, or 0 bytes).
  virtual std::byte* data() = 0;
  virtual std::int64_t bytes() const = 0;

  // A local peer's region mapped read-only into this process, or null for a rank of another host
  // and in a dry run. Pages that are touched count towards this process's resident memory, so
  // use it for small regions that are read in place; Read() for the rest.
  virtual const std::byte* Peer(int rank) = 0;

  // Sets this rank's word, with release order. Values never fall.
  virtual void Signal(int word, std::uint64_t value) = 0;
  // This rank's own or a local or remote peer's word as it is now, with acquire order.
  virtual std::uint64_t Peek(int rank, int word) = 0;
  // Returns when the word of `rank` has reached `at_least`. Throws CommError when the timeout
  // runs out, when that rank has died, or when the group was aborted. `what` goes into the
  // message ("weights of unit 3").
  virtual void Wait(int rank, int word, std::uint64_t at_least, const char* what) = 0;

  // Waits as above, then copies [offset, offset + destination.size()) of that rank's region.
  // Thread-safe; does not raise resident memory beyond the destination.
  virtual void Read(int rank, int word, std::uint64_t at_least, std::int64_t offset,
                    std::span<std::byte> destination, const char* what) = 0;
};

}  // namespace ullage::comm
