#include "memory/ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ullage::memory {

void Ledger::Add(Tag tag, std::int64_t bytes, Tier tier) {
  const auto t = static_cast<std::size_t>(tag);
  std::lock_guard lock(mutex_);
  now_[t] += bytes;
  std::int64_t& on_tier = now_on_[static_cast<std::size_t>(tier)][t];
  on_tier += bytes;
  std::int64_t& peak = peak_on_[static_cast<std::size_t>(tier)][t];
  peak = std::max(peak, on_tier);
  NotePeaks();
  if (listener_ != nullptr) listener_->Changed(tag, bytes, tier);
}

void Ledger::Subtract(Tag tag, std::int64_t bytes, Tier tier) {
  const auto t = static_cast<std::size_t>(tag);
  std::lock_guard lock(mutex_);
  now_[t] -= bytes;
  now_on_[static_cast<std::size_t>(tier)][t] -= bytes;
  if (listener_ != nullptr) listener_->Changed(tag, -bytes, tier);
}

Phase Ledger::Enter(Phase phase) {
  std::lock_guard lock(mutex_);
  const Phase before = std::exchange(phase_, phase);
  NotePeaks();  // what is held already counts in the new phase, too
  if (listener_ != nullptr) listener_->Entered(phase);
  return before;
}

void Ledger::NotePeaks() {
  TagBytes& in_phase = peak_in_[static_cast<std::size_t>(phase_)];
  for (std::size_t tag = 0; tag < now_.size(); ++tag) {
    peak_[tag] = std::max(peak_[tag], now_[tag]);
    in_phase[tag] = std::max(in_phase[tag], now_[tag]);
  }
  peak_total_ = std::max(peak_total_, std::accumulate(now_.begin(), now_.end(), std::int64_t{0}));
}

TagBytes Ledger::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

TagBytes Ledger::now(Tier tier) const {
  std::lock_guard lock(mutex_);
  return now_on_[static_cast<std::size_t>(tier)];
}

TagBytes Ledger::peak(Tier tier) const {
  std::lock_guard lock(mutex_);
  return peak_on_[static_cast<std::size_t>(tier)];
}

TagBytes Ledger::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

TagBytes Ledger::peak_in(Phase phase) const {
  std::lock_guard lock(mutex_);
  return peak_in_[static_cast<std::size_t>(phase)];
}

std::int64_t Ledger::peak_total() const {
  std::lock_guard lock(mutex_);
  return peak_total_;
}

}  // namespace ullage::memory
