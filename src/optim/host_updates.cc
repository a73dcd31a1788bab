#include "optim/host_updates.h"

#include <algorithm>
#include <utility>

#include "torchx/profile.h"

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
    if (!plan.IsUpdatedBeside(static_cast<int>(u))) continue;
    (plan.units[u].state_on_disk ? on_disk_ : units_).push_back(static_cast<int>(u));
  }
  next_ = units_.size();
  if (memory.is_dry()) return;
  const auto serve = [this](void (HostUpdates::*update)()) {
    threads_.emplace_back([this, update] { Serve([this, update] { (this->*update)(); }); });
  };
  if (!units_.empty()) serve(&HostUpdates::UpdateOnHost);
  if (!slots_.empty()) serve(&HostUpdates::UpdateStreamed);
  if (!on_disk_.empty()) serve(&HostUpdates::UpdateOnDisk);
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
  for (const int unit : on_disk_) weights_.AnnounceUpdate(unit);
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

void HostUpdates::UpdateOnHost() {
  for (int unit = -1; Take(unit);) {
    const torchx::ProfilerRange range("update", unit);
    optimizer_.Update(unit, step_);
    Publish(unit);
  }
}

void HostUpdates::UpdateStreamed() {
  std::deque<Flight> flights;
  for (int unit = -1; Take(unit);) {
    const torchx::ProfilerRange range("streamed update", unit);
    StreamUnit(unit, flights);
  }
  for (Flight& flight : flights) Land(std::move(flight));
}

void HostUpdates::UpdateOnDisk() {
  optimizer_.UpdateOnDisk(step_, [this](int unit) { Publish(unit); });
}

void HostUpdates::Serve(const std::function<void()>& update) {
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
      update();
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

void HostUpdates::StreamUnit(int unit, std::deque<Flight>& flights) {
  const std::int64_t numel = plan_.HeldNumel(unit);
  for (std::int64_t begin = 0; begin < numel; begin += plan::kStreamNumel) {
    const std::int64_t end = std::min(begin + plan::kStreamNumel, numel);
    if (flights.size() == plan::kStreamSlots) {
      Land(std::move(flights.front()));
      flights.pop_front();
    }
    constexpr auto kSlots = static_cast<std::int64_t>(plan::kStreamSlots);
    StreamPart(unit, begin, end, slots_.data() + parts_++ % kSlots * (slots_.size() / kSlots));
    flights.push_back({unit, end == numel, down_.Mark()});
  }
}

void HostUpdates::StreamPart(int unit, std::int64_t begin, std::int64_t end, std::byte* slot) {
  const std::int64_t numel = end - begin;
  const DType dtype = plan_.units[static_cast<std::size_t>(unit)].unit.dtype;
  const StateArrays home = optimizer_.From(unit, optimizer_.Arrays(unit), begin);
  StateArrays here = home;
  // Copies `numel` elements of an array to the next place in the slot, which it returns.
  const auto bring = [&](const void* array, std::int64_t element_bytes) {
    std::byte* place = slot;
    up_.Copy(place, array, numel * element_bytes);
    slot += numel * element_bytes;
    return place;
  };
  if (home.moments != nullptr) {
    here.moments = reinterpret_cast<float*>(slot);
    here.moment_numel = numel;
    for (int i = 0; i < plan_.moments; ++i) bring(home.moments + i * home.moment_numel, 4);
  }
  // Weights that are on the device anyway are updated there.
  std::byte* const copy = weights_.Copy(unit, compute_);
  here.weights = copy != nullptr ? copy + begin * ElementBytes(dtype)
                                 : bring(home.weights, ElementBytes(dtype));
  if (home.extension != nullptr)
    here.extension = bring(home.extension, MasterExtensionBytes(dtype));
  here.gradients.data = bring(home.gradients.data, ElementBytes(home.gradients.dtype));
  compute_.After(up_.Mark());
  optimizer_.UpdateRange(unit, begin, end, here, step_, /*on_cuda=*/true, compute_.stream());
  down_.After(compute_.Mark());
  for (int i = 0; i < plan_.moments; ++i) {
    down_.Copy(home.moments + i * home.moment_numel, here.moments + i * numel, 4 * numel);
  }
  down_.Copy(home.weights, here.weights, numel * ElementBytes(dtype));
  if (home.extension != nullptr) {
    down_.Copy(home.extension, here.extension, numel * MasterExtensionBytes(dtype));
  }
}

void HostUpdates::Land(Flight flight) {
  flight.arrived.Wait();
  if (!flight.is_last) return;
  gradients_.ClearUnit(flight.unit);
  weights_.PublishBoth(flight.unit);
}

void HostUpdates::Publish(int unit) {
  gradients_.ClearUnit(unit);
  weights_.Publish(unit);
}

}  // namespace ullage::optim
