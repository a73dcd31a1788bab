#include "memory/work_log.h"

namespace ullage::memory {

using torchx::OperatorWork;

void WorkLog::Worked(const OperatorWork& work) {
  ++counts_[{static_cast<std::int64_t>(phase_), static_cast<std::int64_t>(work.kind),
             static_cast<std::int64_t>(work.type),
             (work.is_causal ? 1 : 0) + (work.has_dropout ? 2 : 0), work.batch, work.rows,
             work.columns, work.inner, work.bytes}];
}

void WorkLog::Passed(Traffic traffic, std::int64_t bytes) {
  passed_[Index(phase_)][static_cast<std::size_t>(traffic)] += bytes;
}

void WorkLog::Enter(Phase phase) {
  if (watch_ != nullptr) {
    calls_[Index(phase_)] += watch_->calls() - calls_before_;
    calls_before_ = watch_->calls();
  }
  phase_ = phase;
  ++entries_[Index(phase)];
}

std::vector<WorkLog::Kernels> WorkLog::kernels() const {
  std::vector<Kernels> kernels;
  for (const auto& [key, count] : counts_) {
    const auto [phase, kind, type, variant, batch, rows, columns, inner, bytes] = key;
    kernels.push_back({static_cast<Phase>(phase),
                       {static_cast<OperatorWork::Kind>(kind), static_cast<c10::ScalarType>(type),
                        (variant & 1) != 0, (variant & 2) != 0, batch, rows, columns, inner, bytes},
                       count});
  }
  return kernels;
}

}  // namespace ullage::memory
