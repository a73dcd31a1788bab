// The learning rate, and for OneCycle the momentum, that each step of the optimizer uses.
#pragma once

#include <cstdint>
#include <optional>

#include "ullage/settings.h"

namespace ullage::optim {

// A pure function of how many steps were applied before; a skipped step does not count, so it
// does not move the schedule. Holds no state and may be shared between threads.
//
// The numbers are those that a user of DeepSpeed gets from the scheduler of the same name. See
// Note [The first two steps of a warm-up] in schedule.cc.
class Schedule {
 public:
  // beta2 while the momentum is cycled: DeepSpeed writes (momentum, 0.99) as the betas.
  static constexpr double kCycledBeta2 = 0.99;

  // `base_lr` is the learning rate of the optimizer section or of the parameter group. It is used
  // as it is when there is no scheduler, and where a scheduler's own rates refer to it.
  Schedule(const SchedulerSettings& settings, double base_lr);

  // The learning rate of the step that comes after `applied_steps` applied ones (0: the first
  // step). Throws StateError when `applied_steps` is negative.
  double LrAt(std::int64_t applied_steps) const;

  // Adam's beta1 in that step, with kCycledBeta2 as beta2. Empty unless the schedule cycles the
  // momentum; then the optimizer section's own values hold.
  std::optional<double> MomentumAt(std::int64_t applied_steps) const;

 private:
  SchedulerSettings settings_;
  double base_lr_;
};

}  // namespace ullage::optim
