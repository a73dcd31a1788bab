// The ledger: how many bytes the engine holds, for what, and when it held most.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "plan/tag.h"

namespace ullage::memory {

enum class Phase : std::uint8_t { kLoad, kForward, kBackward, kStep, kIdle };
inline constexpr std::size_t kPhaseCount = 5;
inline constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "load", "forward", "backward", "step", "idle"};

using plan::Tag;
using plan::Tier;
using TagBytes = std::array<std::int64_t, plan::kTagCount>;

// Bytes that the engine has to bring from one place to another, or to read and write where they
// are.
enum class Traffic : std::uint8_t {
  kUp,          // from the host to the device
  kDown,        // and back
  kFromPeers,   // from other ranks
  kGradients,   // passed where operators run to bring gradients into their sums
  kUpdate,      // passed where operators run by an update of what lies there
  kHostUpdate,  // of what lies on the host, with the device elsewhere
  kDiskUpdate,  // on disk
  kHostSums,    // passed on the host to add gradients to sums there
  kHostNorm,    // read there for their norm
};
inline constexpr std::size_t kTrafficCount = 9;

// Hears of every change of a ledger, in order, one at a time.
class LedgerListener {
 public:
  virtual ~LedgerListener() = default;
  virtual void Changed(Tag tag, std::int64_t bytes, Tier tier) = 0;
  virtual void Entered(Phase phase) = 0;
  virtual void Passed(Traffic traffic, std::int64_t bytes) = 0;
};

// One for each engine, so one for each rank. Thread-safe.
class Ledger {
 public:
  // Before the first change. `listener` outlives the ledger; null: nobody.
  void Tell(LedgerListener* listener) { listener_ = listener; }

  void Add(Tag tag, std::int64_t bytes, Tier tier = Tier::kDevice);
  void Subtract(Tag tag, std::int64_t bytes, Tier tier = Tier::kDevice);
  // Tells the listener, if there is one. A dry run does, a run in part.
  void Passed(Traffic traffic, std::int64_t bytes) {
    if (listener_ != nullptr) listener_->Passed(traffic, bytes);
  }
  // What is allocated from now on is counted under `phase`; returns the phase before.
  Phase Enter(Phase phase);

  // Of all tiers together.
  TagBytes now() const;
  TagBytes peak() const;  // of each tag by itself
  TagBytes peak_in(Phase phase) const;
  std::int64_t peak_total() const;  // of all tags together
  // Of one tier.
  TagBytes now(Tier tier) const;
  TagBytes peak(Tier tier) const;

 private:
  void NotePeaks();

  mutable std::mutex mutex_;
  LedgerListener* listener_ = nullptr;
  Phase phase_ = Phase::kIdle;
  TagBytes now_{};
  TagBytes peak_{};
  std::array<TagBytes, plan::kTierCount> now_on_{};
  std::array<TagBytes, plan::kTierCount> peak_on_{};
  std::array<TagBytes, kPhaseCount> peak_in_{};
  std::int64_t peak_total_ = 0;
};

// Enters a phase for the life of a scope.
class PhaseScope {
 public:
  PhaseScope(Ledger& ledger, Phase phase) : ledger_(ledger), before_(ledger.Enter(phase)) {}
  ~PhaseScope() { ledger_.Enter(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Ledger& ledger_;
  Phase before_;
};

}  // namespace ullage::memory
