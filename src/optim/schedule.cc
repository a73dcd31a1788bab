#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::optim {
namespace {

// Note [The first two steps of a warm-up]
// DeepSpeed's schedulers count from -1, write the initial rate when they are made, and advance
// after each applied step. So step k (from 1) uses the rate of iteration k - 2: step 1 the rate
// written at construction, step 2 the rate of iteration 0. For a warm-up from 0 both are 0, and
// a warm-up over N steps is complete at step N + 2 (linear) or N + 1 (logarithmic). People's
// learning rates are tuned to that, so the schedules of these names keep it.
double Iteration(std::int64_t applied_steps) {
  if (applied_steps < 0) {
    throw StateError(
        fmt::format("a schedule was asked for a step after {} applied ones", applied_steps));
  }
  return static_cast<double>(applied_steps - 1);
}

// Share of the way from the smallest rate to the largest; only during the warm-up.
double WarmupShare(double iteration, double warmup_steps, bool logarithmic) {
  return logarithmic ? std::log(iteration + 1) / std::log(warmup_steps) : iteration / warmup_steps;
}

// One step of warm-up would divide by log(1) = 0.
double WarmupSteps(std::int64_t steps) {
  return static_cast<double>(std::max<std::int64_t>(2, steps));
}

double WarmupLrAt(const WarmupLr& warmup, double iteration, double base_lr, double share_after) {
  const double steps = WarmupSteps(warmup.warmup_steps);
  if (iteration < 0) return warmup.min_lr;
  const double share =
      iteration < steps ? WarmupShare(iteration, steps, warmup.logarithmic) : share_after;
  return warmup.min_lr + (warmup.max_lr.value_or(base_lr) - warmup.min_lr) * share;
}

double DecayShare(const WarmupDecayLr& decay, double iteration) {
  const double total = static_cast<double>(decay.total_steps);
  const double length = std::max(1.0, total - WarmupSteps(decay.warmup.warmup_steps));
  return std::max(0.0, (total - iteration) / length);
}

double CosineLrAt(const WarmupCosineLr& cosine, double iteration, double base_lr) {
  const double steps = WarmupSteps(cosine.warmup_steps);
  if (iteration < 0) return 0;
  if (iteration < steps) {
    const double share = WarmupShare(iteration, steps, cosine.logarithmic);
    return base_lr * (cosine.warmup_min_ratio + share * (1 - cosine.warmup_min_ratio));
  }
  const double length = std::max(1.0, static_cast<double>(cosine.total_steps) - steps);
  const double progress = std::min(1.0, (iteration - steps + 1) / length);
  const double share = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return base_lr * std::max(0.0, cosine.cos_min_ratio + (1 - cosine.cos_min_ratio) * share);
}

struct Cycle {
  double first = 0;   // rising steps
  double second = 0;  // falling steps
  double total() const { return first + second; }
};

Cycle CycleOf(const OneCycleLr& one_cycle) {
  return {static_cast<double>(one_cycle.first_steps),
          static_cast<double>(one_cycle.second_steps.value_or(one_cycle.first_steps))};
}

// 0 at the ends of the cycle, 1 at its peak; in stairs when asked for. Stairs are cut from the
// integer position, because the quotient may land just below a stair.
double CycleScale(const OneCycleLr& one_cycle, double iteration) {
  const Cycle cycle = CycleOf(one_cycle);
  const double position = iteration + 1;
  const double ratio = cycle.first / cycle.total();
  const double turns = position / cycle.total();
  const double x = 1 + turns - std::floor(1 + turns);
  const bool rising = x <= ratio;
  const std::int64_t stairs =
      rising ? one_cycle.first_stairs : one_cycle.second_stairs.value_or(one_cycle.first_stairs);
  if (stairs == 0) return rising ? x / ratio : (x - 1) / (ratio - 1);
  const double count = static_cast<double>(stairs);
  const double in_cycle = std::fmod(position, cycle.total());
  const double stair = in_cycle <= cycle.first ? in_cycle * count / cycle.first
                                               : (cycle.total() - in_cycle) * count / cycle.second;
  return std::floor(stair) / count;
}

// How far the decay after the cycle has come, in decay steps; 0 when there is no decay.
double DecaySteps(const OneCycleLr& one_cycle, double iteration) {
  if (one_cycle.decay_step_size == 0) return 0;
  return (iteration - CycleOf(one_cycle).total() + 1) /
         static_cast<double>(one_cycle.decay_step_size);
}

double OneCycleLrAt(const OneCycleLr& one_cycle, double iteration) {
  if (iteration < CycleOf(one_cycle).total()) {
    return one_cycle.min_lr +
           (one_cycle.max_lr - one_cycle.min_lr) * CycleScale(one_cycle, iteration);
  }
  return one_cycle.min_lr / (1 + one_cycle.decay_lr_rate * DecaySteps(one_cycle, iteration));
}

double RangeTestLrAt(const RangeTestLr& range, double iteration) {
  const double interval = (iteration + 1) / static_cast<double>(range.step_size);
  return range.min_lr * (1 + range.step_rate * (range.staircase ? std::floor(interval) : interval));
}

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

}  // namespace

Schedule::Schedule(const SchedulerSettings& settings, double base_lr)
    : settings_(settings), base_lr_(base_lr) {}

double Schedule::LrAt(std::int64_t applied_steps) const {
  const double iteration = Iteration(applied_steps);
  return std::visit(
      Overloaded{
          [&](std::monostate) { return base_lr_; },
          [&](const WarmupLr& warmup) { return WarmupLrAt(warmup, iteration, base_lr_, 1.0); },
          [&](const WarmupDecayLr& decay) {
            return WarmupLrAt(decay.warmup, iteration, base_lr_, DecayShare(decay, iteration));
          },
          [&](const WarmupCosineLr& cosine) { return CosineLrAt(cosine, iteration, base_lr_); },
          [&](const OneCycleLr& one_cycle) { return OneCycleLrAt(one_cycle, iteration); },
          [&](const RangeTestLr& range) { return RangeTestLrAt(range, iteration); }},
      settings_);
}

std::optional<double> Schedule::MomentumAt(std::int64_t applied_steps) const {
  const double iteration = Iteration(applied_steps);
  const auto* one_cycle = std::get_if<OneCycleLr>(&settings_);
  if (one_cycle == nullptr || !one_cycle->cycle_momentum) return std::nullopt;
  // What DeepSpeed writes when it is made is the smallest momentum, although the smallest rate
  // goes with the largest momentum from the second step on.
  if (iteration < 0) return one_cycle->min_momentum;
  if (iteration < CycleOf(*one_cycle).total()) {
    return one_cycle->max_momentum -
           (one_cycle->max_momentum - one_cycle->min_momentum) * CycleScale(*one_cycle, iteration);
  }
  return one_cycle->max_momentum *
         (1 + one_cycle->decay_momentum_rate * DecaySteps(*one_cycle, iteration));
}

}  // namespace ullage::optim
