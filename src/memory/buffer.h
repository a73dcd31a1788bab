// Memory that the engine owns, with its entry in the ledger.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/ledger.h"
#include "plan/plan.h"

namespace ullage::memory {

// Where an engine's bytes are. On kNowhere (dry runs) buffers are counted but hold no memory, and
// everything that would touch bytes is left out.
enum class Place : std::uint8_t { kHost, kNowhere };

// An entry in the ledger for bytes that somebody else allocated; taken back on destruction.
class Claim {
 public:
  Claim() = default;
  Claim(Ledger& ledger, Tag tag, plan::BufferBytes bytes);
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&& other) noexcept;
  ~Claim();

  plan::BufferBytes bytes() const { return bytes_; }

 private:
  Ledger* ledger_ = nullptr;
  Tag tag_ = Tag::kWeights;
  plan::BufferBytes bytes_;
};

// Zero-filled, aligned to a page when large and to 64 bytes else. Large buffers are mapped by
// themselves, so that their memory goes back to the system when they end.
class Buffer {
 public:
  Buffer() = default;
  // Throws OutOfMemoryError naming the request and what the ledger holds.
  Buffer(Ledger& ledger, Place place, Tag tag, plan::BufferBytes bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // Null when empty or in a dry run.
  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  std::int64_t size() const { return claim_.bytes().total(); }
  bool empty() const { return size() == 0; }

 private:
  void Free();

  Claim claim_;
  std::byte* data_ = nullptr;
};

}  // namespace ullage::memory
