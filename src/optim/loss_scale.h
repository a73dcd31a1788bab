// The loss scale of fp16: constant, or growing while steps succeed and shrinking on overflow.
#pragma once

#include <cstdint>

#include "ullage/settings.h"

namespace ullage::optim {

// What a checkpoint keeps of a LossScaler.
struct LossScaleState {
  double scale = 1;
  std::int64_t iteration = 0;       // steps seen, applied or skipped
  std::int64_t last_overflow = -1;  // the iteration of the last overflow; -1: none
  int hysteresis_left = 0;          // overflows before the scale shrinks, that one included

  bool operator==(const LossScaleState&) const = default;
};

// Every rank holds one and feeds it the same verdicts, so their scales stay equal. Not
// thread-safe.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleSettings& settings);

  // The factor for the loss of every backward up to the next Update, and the one by which the
  // gradients of those backwards are divided: read it before Update.
  double scale() const { return state_.scale; }

  // Called once per step, with whether any rank saw inf or nan. A constant scale never changes.
  // Throws StateError when a step overflows although the scale is at its minimum.
  void Update(bool overflow);

  const LossScaleState& state() const { return state_; }
  // Throws StateError for values that no LossScaler can have reached.
  void set_state(const LossScaleState& state);

 private:
  LossScaleSettings settings_;
  LossScaleState state_;
};

}  // namespace ullage::optim
