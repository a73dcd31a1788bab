// Memory that the engine owns, with its entry in the ledger.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "memory/ledger.h"
#include "plan/plan.h"

namespace ullage::memory {

// Where operators run.
enum class Place : std::uint8_t { kHost, kCuda };

// An entry in the ledger for bytes that somebody else allocated; taken back on destruction.
class Claim {
 public:
  Claim() = default;
  Claim(Ledger& ledger, Tag tag, plan::BufferBytes bytes, Tier tier = Tier::kDevice);
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&& other) noexcept;
  ~Claim();

  plan::BufferBytes bytes() const { return bytes_; }
  Tier tier() const { return tier_; }

 private:
  Ledger* ledger_ = nullptr;
  Tag tag_ = Tag::kWeights;
  plan::BufferBytes bytes_;
  Tier tier_ = Tier::kDevice;
};

// Zero-filled. In device memory, or in the host's: there aligned to a page when large and to 64
// bytes else, and mapped by itself when large, so that it goes back to the system when it ends.
class Buffer {
 public:
  Buffer() = default;
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
  Tier tier() const { return claim_.tier(); }

 private:
  friend class Memory;
  enum class Source : std::uint8_t { kNone, kHeap, kMapping, kCuda, kArena };

  void Free();

  Claim claim_;
  std::byte* data_ = nullptr;
  Source source_ = Source::kNone;
};

// Gives out the memory of one engine and keeps its ledger. In a dry run buffers are counted but
// hold no memory, and everything that would touch bytes is left out.
class Memory {
 public:
  // Throws UnsupportedError when a CUDA device is asked for and none can be used.
  explicit Memory(Place place, bool dry = false);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Throws OutOfMemoryError naming the request and what the ledger holds.
  Buffer Allocate(Tag tag, plan::BufferBytes bytes, Tier tier = Tier::kDevice);
  Claim Note(Tag tag, plan::BufferBytes bytes, Tier tier = Tier::kDevice) {
    return {ledger_, tag, bytes, tier};
  }

  // From now on buffers of the tier come from `allocate`, which outlives them and gives zero-filled
  // memory or throws; their bytes are never given back to it. On the device it may give null, and
  // the buffer is ordinary memory. So are all with a null function, as at the start: that is for
  // what comes and goes.
  using Arena = std::function<std::byte*(std::int64_t bytes)>;
  void UseHostArena(Arena allocate) { host_arena_ = std::move(allocate); }
  void UseDeviceArena(Arena allocate) { device_arena_ = std::move(allocate); }

  Ledger& ledger() { return ledger_; }
  // How many buffers that are not empty were allocated so far. Any thread.
  std::int64_t allocations() const { return allocations_; }
  bool is_dry() const { return dry_; }
  bool is_cuda() const { return place_ == Place::kCuda; }
  // Where operators run: Meta in a dry run.
  c10::Device device() const { return device_; }
  // Whether bytes of `tier` are in a memory that the CPU cannot touch.
  bool OnCuda(Tier tier) const { return place_ == Place::kCuda && tier == Tier::kDevice; }

 private:
  Ledger ledger_;
  const Place place_;
  const bool dry_;
  const c10::Device device_;
  Arena host_arena_, device_arena_;
  std::atomic<std::int64_t> allocations_ = 0;
};

}  // namespace ullage::memory
