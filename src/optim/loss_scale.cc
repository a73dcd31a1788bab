#include "optim/loss_scale.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::optim {
namespace {

// The loss is scaled in fp32, which holds no larger power of two.
constexpr double kLargestScale = 0x1p127;

bool Dynamic(const LossScaleSettings& settings) {
  return settings.loss_scale == 0;
}

}  // namespace

LossScaler::LossScaler(const LossScaleSettings& settings) : settings_(settings) {
  state_.scale =
      Dynamic(settings) ? std::ldexp(1.0, settings.initial_scale_power) : settings.loss_scale;
  state_.hysteresis_left = settings.hysteresis;
}

void LossScaler::Update(bool overflow) {
  if (!Dynamic(settings_)) return;
  if (overflow) {
    if (state_.hysteresis_left > 1) {
      --state_.hysteresis_left;
    } else if (state_.scale <= settings_.min_loss_scale) {
      throw StateError(
          fmt::format("gradients overflow at the smallest loss scale, {} (fp16.min_loss_scale), "
                      "at step {}",
                      state_.scale, state_.iteration + 1),
          "a value is inf or nan whatever the scale: lower the learning rate, look for a division "
          "or logarithm of zero in the model, or train in bf16");
    } else {
      state_.scale = std::max(state_.scale / 2, settings_.min_loss_scale);
    }
    state_.last_overflow = state_.iteration;
  } else {
    if (settings_.consecutive_hysteresis) state_.hysteresis_left = settings_.hysteresis;
    // The first good step after an overflow, and the very first step, do not count: the scale
    // first doubles on good step window + 1.
    const std::int64_t stable = state_.iteration - state_.last_overflow - 1;
    if (stable > 0 && stable % settings_.loss_scale_window == 0) {
      state_.hysteresis_left = settings_.hysteresis;
      state_.scale = std::max(state_.scale, std::min(state_.scale * 2, kLargestScale));
    }
  }
  ++state_.iteration;
}

void LossScaler::set_state(const LossScaleState& state) {
  if (!std::isfinite(state.scale) || state.scale <= 0 || state.iteration < 0 ||
      state.last_overflow < -1 || state.last_overflow >= state.iteration ||
      state.hysteresis_left < 1) {
    throw StateError(
        fmt::format("not a state of a loss scaler: scale {}, iteration {}, last overflow {}, "
                    "hysteresis left {}",
                    state.scale, state.iteration, state.last_overflow, state.hysteresis_left),
        "the checkpoint is damaged; load an earlier one");
  }
  state_ = state;
  if (!Dynamic(settings_)) state_.scale = settings_.loss_scale;
}

}  // namespace ullage::optim
