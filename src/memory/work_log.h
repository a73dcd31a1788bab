// What a run has to do, phase by phase: what its time comes from.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "memory/ledger.h"
#include "torchx/operator_watch.h"

namespace ullage::memory {

class WorkLog final : public torchx::WorkListener {
 public:
  // Kernels alike, together.
  struct Kernels {
    Phase phase = Phase::kIdle;
    torchx::OperatorWork work;
    std::int64_t count = 0;
  };

  // `watch` counts the calls of operators; it may be null.
  explicit WorkLog(const torchx::OperatorWatch* watch) : watch_(watch) {}

  // By one thread at a time.
  void Worked(const torchx::OperatorWork& work) override;
  void Allocated(std::int64_t bytes) { allocated_ += bytes; }
  std::int64_t allocated() const override { return allocated_; }
  void Passed(Traffic traffic, std::int64_t bytes);
  void Enter(Phase phase);

  // Once the run has left them. All times that a phase came count together.
  std::vector<Kernels> kernels() const;
  std::int64_t bytes(Phase phase, Traffic traffic) const {
    return passed_[Index(phase)][static_cast<std::size_t>(traffic)];
  }
  // How often the phase came.
  std::int64_t entries(Phase phase) const { return entries_[Index(phase)]; }
  // Operators and nodes of the graph that were called.
  std::int64_t calls(Phase phase) const { return calls_[Index(phase)]; }

 private:
  static std::size_t Index(Phase phase) { return static_cast<std::size_t>(phase); }

  const torchx::OperatorWatch* const watch_;
  Phase phase_ = Phase::kIdle;
  using Key = std::array<std::int64_t, 9>;  // a phase and an OperatorWork
  std::map<Key, std::int64_t> counts_;
  std::array<std::array<std::int64_t, kTrafficCount>, kPhaseCount> passed_{};
  std::array<std::int64_t, kPhaseCount> calls_{}, entries_{};
  std::int64_t allocated_ = 0;
  std::int64_t calls_before_ = 0;  // when the phase began
};

}  // namespace ullage::memory
