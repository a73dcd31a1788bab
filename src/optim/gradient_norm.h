// The global norm of the gradient: one pass over the owned sums, one exchange between ranks.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "grads/gradient_reducer.h"
#include "kernels/device.h"
#include "kernels/norm.h"
#include "memory/buffer.h"

namespace ullage::optim {

struct GradientNorm {
  double sum_of_squares = 0;  // of the summed gradients, finite elements only
  bool is_finite = true;      // on every rank
  int overflowed = -1;        // the first parameter, in order, with an inf or nan; -1: none
};

// Measures the sums of one engine. Gradients that leave a CUDA device as they come are measured
// before, those that are added on the host when the last is; the rest where it lies when Measure is
// called.
class NormMeter {
 public:
  // All references must outlive this. Listens to the reducer.
  NormMeter(const plan::Plan& plan, grads::GradientReducer& gradients, comm::Comm& comm,
            memory::Memory& memory);

  // Collective, once for each step after GradientReducer::Complete: it is also the exchange after
  // which no rank reads old weights any more. On CUDA it waits for all queued work. The result is
  // the same on every rank and does not depend on how the gradients are split over ranks, units
  // and tiers. Pass the step's number as `item`.
  GradientNorm Measure(std::uint32_t item);

 private:
  struct Part;

  void Came(int parameter, DType dtype, const void* gradient, std::int64_t numel);
  void Summed(int parameter, const kernels::SquareSum& squares);
  void Restart(int unit);
  void AddUnitOnHost(int unit, Part& part) const;
  void AddRangeOnHost(int unit, std::int64_t begin, std::int64_t end, Part& part) const;
  void AddFromDevice(Part& part);
  void Clear();
  kernels::device::SquareSumWords* Results() const {
    return on_device_.as<kernels::device::SquareSumWords>();
  }
  torchx::Queue Operators() const { return torchx::Queue::OfOperators(memory_.device()); }
  static std::size_t Index(int index) { return static_cast<std::size_t>(index); }

  const plan::Plan& plan_;
  grads::GradientReducer& gradients_;
  comm::Comm& comm_;
  memory::Memory& memory_;
  // On CUDA: one result for each parameter that is measured as it comes, and one for each unit.
  memory::Buffer on_device_;
  memory::Buffer on_host_;                // its copy
  std::vector<bool> read_when_complete_;  // by unit
  // Of fp32 sums on the host of a machine with a device: measured while they were in the cache, by
  // parameter. Empty: they are read.
  std::vector<std::optional<kernels::SquareSum>> summed_;
  std::mutex of_summed_;
};

}  // namespace ullage::optim
