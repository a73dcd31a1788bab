#include "optim/host_updates.h"

#include <utility>

namespace ullage::optim {

HostUpdates::HostUpdates(const plan::Plan& plan, params::ParameterStore& weights,
                         grads::GradientReducer& gradients, SliceOptimizer& optimizer,
                         memory::Memory& memory)
    : plan_(plan),
      weights_(weights),
      gradients_(gradients),
      optimizer_(optimizer),
      memory_(memory),
      up_(torchx::Queue::Beside(memory.device())),
      compute_(torchx::Queue::Beside(memory.device())),
      down_(torchx::Queue::Beside(memory.device())),
      slots_(memory.Allocate(memory::Tag::kBuckets, {plan.stream_bytes, 0})) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.IsUpdatedBeside(static_cast<int>(u))) units_.push_back(static_cast<int>(u));
  }
  next_ = units_.size();
  if (units_.empty() || memory.is_dry()) return;
  threads_.emplace_back([this] { Serve(/*streamed=*/false); });
  if (!slots_.empty()) threads_.emplace_back([this] { Serve(/*streamed=*/true); });
}

HostUpdates::~HostUpdates() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void HostUpdates::Start(const StepParameters& step) {
  if (threads_.empty()) return;
  Finish();
  for (const int unit : units_) weights_.AnnounceUpdate(unit);
  {
    std::lock_guard lock(mutex_);
    step_ = step;
    next_ = 0;
    serving_ = static_cast<int>(threads_.size());
    ++round_;
  }
  changed_.notify_all();
}

void HostUpdates::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return serving_ == 0; });
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool HostUpdates::Take(int& unit) {
  std::lock_guard lock(mutex_);
  if (next_ == units_.size()) return false;
  unit = units_[next_++];
  return true;
}

void HostUpdates::Serve(bool streamed) {
  torchx::UseDevice(memory_.device());
  std::uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (round_ == seen) return;
      seen = round_;
    }
    try {
      int unit = -1;
      std::deque<Flight> flights;
      for (std::size_t i = 0; Take(unit); ++i) {
        if (!streamed) {
          optimizer_.Update(unit, step_);
          Publish(unit);
          continue;
        }
        if (flights.size() == plan::kStreamSlots) {
          Land(std::move(flights.front()));
          flights.pop_front();
        }
        const std::int64_t slot_bytes = slots_.size() / plan::kStreamSlots;
        UpdateStreamed(
            unit, slots_.data() + static_cast<std::int64_t>(i % plan::kStreamSlots) * slot_bytes);
        flights.push_back({unit, down_.Mark()});
      }
      for (Flight& flight : flights) Land(std::move(flight));
    } catch (const std::exception& error) {
      weights_.FailUpdates(error.what());
      std::lock_guard lock(mutex_);
      if (error_ == nullptr) error_ = std::current_exception();
      next_ = units_.size();
    }
    {
      std::lock_guard lock(mutex_);
      --serving_;
    }
    changed_.notify_all();
  }
}

void HostUpdates::UpdateStreamed(int unit, std::byte* slot) {
  const StateArrays home = optimizer_.Arrays(unit);
  StateArrays here = home;
  const auto bring = [&](auto*& array, std::int64_t bytes) {
    if (bytes == 0) return;
    up_.Copy(slot, array, bytes);
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(slot);
    slot += bytes;
  };
  bring(here.moments, home.moments_bytes);
  bring(here.weights, home.weights_bytes);
  bring(here.extension, home.extension_bytes);
  bring(here.gradients.data, home.gradients_bytes);
  compute_.After(up_.Mark());
  optimizer_.UpdateArrays(unit, step_, here, /*on_cuda=*/true, compute_.stream());
  down_.After(compute_.Mark());
  down_.Copy(home.moments, here.moments, home.moments_bytes);
  down_.Copy(home.weights, here.weights, home.weights_bytes);
  down_.Copy(home.extension, here.extension, home.extension_bytes);
}

void HostUpdates::Land(Flight flight) {
  flight.arrived.Wait();
  Publish(flight.unit);
}

void HostUpdates::Publish(int unit) {
  gradients_.ClearUnit(unit);
  weights_.Publish(unit);
}

}  // namespace ullage::optim
