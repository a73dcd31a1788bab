// Updating state that lies on the host while the device goes on: the host's cores take one unit
// after the other, and so does the device, through which the state of others is streamed. Each
// takes the next unit when it is done with the last, so that both end together. Units whose state
// is on disk have a thread of their own, which uses the host's cores, too.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "grads/gradient_reducer.h"
#include "memory/buffer.h"
#include "optim/slice_optimizer.h"
#include "params/parameter_store.h"
#include "torchx/device.h"

namespace ullage::optim {

// For engines that compute on CUDA. Where a unit is updated makes no difference to its bits.
class HostUpdates {
 public:
  // All references must outlive this.
  HostUpdates(const plan::Plan& plan, params::ParameterStore& weights,
              grads::GradientReducer& gradients, SliceOptimizer& optimizer, memory::Memory& memory);
  // Finishes what was started.
  ~HostUpdates();

  // Begins to update all units whose home is the host, in the order in which a forward uses them,
  // and returns. Each is published when it is done; operators wait for the units that they use.
  void Start(const StepParameters& step);
  // Everything that was started is done. Throws what a thread met.
  void Finish();

 private:
  struct Flight {  // of a part of a unit whose new state is on its way back to the host
    int unit;
    bool is_last;  // of the unit
    torchx::Event arrived;
  };

  void Serve(const std::function<void()>& update);
  bool Take(int& unit);
  void UpdateOnHost();
  void UpdateStreamed();
  void UpdateOnDisk();
  void StreamUnit(int unit, std::deque<Flight>& flights);
  void StreamPart(int unit, std::int64_t begin, std::int64_t end, std::byte* slot);
  void Land(Flight flight);
  void Publish(int unit);

  const plan::Plan& plan_;
  params::ParameterStore& weights_;
  grads::GradientReducer& gradients_;
  SliceOptimizer& optimizer_;
  memory::Memory& memory_;
  const torchx::Queue up_, compute_, down_;
  memory::Buffer slots_;    // plan::kStreamSlots parts of units with all their state
  std::int64_t parts_ = 0;  // streamed so far
  std::vector<int> units_;  // in the order in which they are taken
  std::vector<int> on_disk_;

  std::mutex mutex_;
  std::condition_variable changed_;
  StepParameters step_;
  std::size_t next_ = 0;  // in units_
  std::uint64_t round_ = 0;
  int serving_ = 0;  // threads that are not done with this round
  bool stop_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace ullage::optim
