// One page of shared memory in which a rank tells its peers where it is.
//
// The page carries the fingerprints. A rank that enters a collective writes its record into the
// slot of that position and raises `entered`; every peer waits for `entered`, reads the slot and
// compares. Two slots suffice: a rank cannot enter position n + 2 before all have entered n + 1,
// and whoever has entered n + 1 has read slot n.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/comm.h"

namespace ullage::comm {

// A fingerprint and what else must agree for the bytes to fit.
struct Record {
  Fingerprint fingerprint = {};
  std::int64_t bytes = 0;  // of one rank's contribution
  std::int64_t root = 0;   // of a broadcast

  bool Agrees(const Record& other) const;
};
static_assert(sizeof(Record) == 32);

enum class State : std::uint32_t {
  kJoining = 0,
  kRunning,
  kAborted,  // the group is being stopped; the reason stands in the page
  kClosed,   // this rank has destroyed its Comm in good order
};

// How far a rank has come, as it and others describe it in messages.
struct Position {
  std::uint64_t entered = 0;   // collectives entered
  std::uint64_t finished = 0;  // collectives completed
  Record last;                 // the one entered last, when entered > 0
};

// "at all_reduce_sum of item 7, position 12"; with the bytes where `with_bytes` asks for them.
std::string Describe(const Record& record, bool with_bytes = false);
// "in barrier of item 3, position 4" or "after barrier of item 3, position 4".
std::string Describe(const Position& position);

class StatusPage {
 public:
  static constexpr std::size_t kReasonBytes = 480;

  // Called by the owner. Enter and Finish run on the thread of the collective.
  void Initialize(std::uint64_t nonce) { nonce_.store(nonce, std::memory_order_release); }
  void Enter(const Record& record);
  void Finish() {
    finished_.store(entered_.load(std::memory_order_relaxed), std::memory_order_release);
  }
  // The first reason stays. One thread at a time.
  void MarkAborted(const std::string& reason);
  void MarkRunning();
  void MarkClosed();

  // Called by anybody.
  std::uint64_t nonce() const { return nonce_.load(std::memory_order_acquire); }
  State state() const { return static_cast<State>(state_.load(std::memory_order_acquire)); }
  std::string reason() const;  // valid once state() is kAborted
  std::uint64_t entered() const { return entered_.load(std::memory_order_acquire); }
  std::uint64_t finished() const { return finished_.load(std::memory_order_acquire); }
  Record At(std::uint64_t sequence) const;
  Position position() const;

 private:
  using Words = std::array<std::atomic<std::uint64_t>, sizeof(Record) / 8>;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  std::atomic<std::uint64_t> nonce_;
  std::atomic<std::uint64_t> entered_;
  std::atomic<std::uint64_t> finished_;
  std::array<Words, 2> slots_;
  std::atomic<std::uint32_t> state_;
  char reason_[kReasonBytes];
};

}  // namespace ullage::comm
