#include "memory/trace.h"

#include <algorithm>
#include <optional>

namespace ullage::memory {

Use Trace::Storage::use() const {
  if (phase == Phase::kIdle || phase == Phase::kLoad) return Use::kInputs;
  return phase == Phase::kForward && died_in != born_in ? Use::kActivations : Use::kTemporaries;
}

void Trace::Note(std::int64_t bytes, std::int32_t storage, Tag tag) {
  events_.push_back(
      {bytes, storage, phase_, tag, watch_ != nullptr ? watch_->site() : torchx::Site()});
}

void Trace::Allocated(const void* storage, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::int32_t>(storages_.size());
  storages_.push_back({.bytes = bytes,
                       .born = static_cast<std::int32_t>(events_.size()),
                       .born_in = stretch_,
                       .phase = phase_});
  held_[storage] = index;
  work_.Allocated(bytes);
  Note(bytes, index, Tag::kData);
}

void Trace::Freed(const void* storage) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(storage);
  if (found == held_.end()) return;
  Storage& ended = storages_[static_cast<std::size_t>(found->second)];
  ended.died = static_cast<std::int32_t>(events_.size());
  ended.died_in = stretch_;
  Note(-ended.bytes, found->second, Tag::kData);
  held_.erase(found);
}

void Trace::Changed(Tag tag, std::int64_t bytes, Tier tier) {
  if (tier != Tier::kDevice || bytes == 0) return;
  const std::lock_guard lock(mutex_);
  Note(bytes, -1, tag);
}

void Trace::Passed(Traffic traffic, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  work_.Passed(traffic, bytes);
}

void Trace::Entered(Phase phase) {
  const std::lock_guard lock(mutex_);
  if (phase != phase_) ++stretch_;
  phase_ = phase;
  work_.Enter(phase);
  Note(0, -1, Tag::kWeights);
}

std::vector<Trace::Peak> Trace::Peaks() const {
  const std::lock_guard lock(mutex_);
  std::array<std::optional<Peak>, kPhaseCount> found;
  Peak now;
  for (std::size_t e = 0; e < events_.size(); ++e) {
    const Event& event = events_[e];
    now.total += event.bytes;
    if (event.storage < 0) {
      now.engine[static_cast<std::size_t>(event.tag)] += event.bytes;
    } else {
      const Use use = storages_[static_cast<std::size_t>(event.storage)].use();
      now.operators[static_cast<std::size_t>(use)] += event.bytes;
    }
    std::optional<Peak>& peak = found[static_cast<std::size_t>(event.phase)];
    if (peak && peak->total >= now.total) continue;
    peak = now;
    peak->phase = event.phase;
    peak->event = static_cast<std::int32_t>(e);
  }
  std::vector<Peak> peaks;
  for (std::optional<Peak>& peak : found) {
    if (!peak) continue;
    for (std::size_t s = 0; s < storages_.size(); ++s) {
      const Storage& storage = storages_[s];
      if (storage.born > peak->event || (storage.died >= 0 && storage.died <= peak->event)) {
        continue;
      }
      peak->storages.push_back(static_cast<std::int32_t>(s));
    }
    std::ranges::stable_sort(peak->storages, std::ranges::greater(), [this](std::int32_t s) {
      return storages_[static_cast<std::size_t>(s)].bytes;
    });
    peaks.push_back(std::move(*peak));
  }
  return peaks;
}

}  // namespace ullage::memory
