// Moments of what this rank holds, read and written as a checkpoint does.
#include <cstring>

#include "optim/slice_optimizer.h"

namespace ullage::optim {

void SliceOptimizer::StoreMoment(int index, int moment, std::int64_t first,
                                 std::span<const float> values) {
  weights_.AwaitUpdate(index);
  if (unit_plan(index).state_on_disk) return disk_.StoreMoment(index, moment, first, values);
  const UnitState& state = units_[static_cast<std::size_t>(index)];
  float* at = state.moments.as<float>() + moment * state.numel + first;
  if (!OnCuda(index)) {
    std::memcpy(at, values.data(), values.size_bytes());
    return;
  }
  const torchx::Queue queue = torchx::Queue::OfOperators(memory_.device());
  queue.Copy(at, values.data(), static_cast<std::int64_t>(values.size_bytes()));
  queue.Finish();
}

void SliceOptimizer::LoadMoment(int index, int moment, std::int64_t first,
                                std::span<float> values) {
  weights_.AwaitUpdate(index);
  if (unit_plan(index).state_on_disk) return disk_.LoadMoment(index, moment, first, values);
  const UnitState& state = units_[static_cast<std::size_t>(index)];
  const float* at = state.moments.as<float>() + moment * state.numel + first;
  if (!OnCuda(index)) {
    std::memcpy(values.data(), at, values.size_bytes());
    return;
  }
  const torchx::Queue queue = torchx::Queue::OfOperators(memory_.device());
  queue.Copy(values.data(), at, static_cast<std::int64_t>(values.size_bytes()));
  queue.Finish();
}

}  // namespace ullage::optim
