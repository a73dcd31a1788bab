// Memory of one process that others of the same host can open: memfds, found through /proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/descriptor.h"
#include "comm/host.h"

namespace ullage::comm {

std::int64_t RoundUpToPage(std::int64_t bytes);

// Zero-filled pages that this process owns. Shared ones can be opened by peers for as long as
// this object lives; a peer that has opened them keeps them after that.
class OwnedRegion {
 public:
  OwnedRegion() = default;
  // Throws OutOfMemoryError. `name` is for messages and /proc/PID/maps.
  static OwnedRegion Shared(const std::string& name, std::int64_t bytes);
  static OwnedRegion Private(const std::string& name, std::int64_t bytes);
  OwnedRegion(OwnedRegion&& other) noexcept;
  OwnedRegion& operator=(OwnedRegion&& other) noexcept;
  ~OwnedRegion();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }  // whole pages
  int fd() const { return fd_.get(); }           // -1 for private pages

 private:
  Descriptor fd_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Pages of a peer mapped read-only into this process.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const std::byte* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// A peer's region, opened read-only.
class PeerRegion {
 public:
  PeerRegion() = default;
  // Opens descriptor `fd` of `process`. Throws CommError when it cannot be opened or is smaller
  // than `bytes`.
  PeerRegion(const ProcessId& process, int fd, std::int64_t bytes);

  bool valid() const { return fd_.valid(); }
  // `offset` must be a whole number of pages. Throws CommError.
  Mapping Map(std::int64_t offset, std::int64_t bytes) const;
  // Copies without mapping, so that no resident memory is added. Thread-safe. Throws CommError.
  void Read(std::int64_t offset, std::span<std::byte> destination) const;

 private:
  Descriptor fd_;
};

}  // namespace ullage::comm
