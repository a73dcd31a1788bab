// Gradients on their way to sums in the same memory, many at a time.
//
// Note [Batches of gradients]
// On a GPU the host needs longer to launch a copy than the device needs to make it, and a model has
// hundreds of parameters. So gradients are held as they come and brought to their sums by one
// launch for many. What is held is memory that autograd would have given back, up to kHeldBytes of
// it; it is not held when a pass needs the most, which is at its beginning. A gradient that is not
// small goes at once: its copy takes longer than its launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device.h"

namespace ullage::grads {

// Called by one thread at a time.
class GradientBatch {
 public:
  static constexpr std::int64_t kHeldBytes = std::int64_t{32} << 20;
  static constexpr std::int64_t kSmallBytes = std::int64_t{8} << 20;

  struct Work {
    std::vector<kernels::device::ArrayPart> copies;
    std::vector<kernels::device::ArrayPart> additions;  // to fp32
  };
  // Does or queues the work; afterwards the gradients are let go. Targets differ from each other.
  using Run = std::function<void(const Work&)>;

  explicit GradientBatch(Run run) : run_(std::move(run)) {}

  // `gradient` is contiguous and of `dtype`; `to` has as many elements.
  void Copy(const at::Tensor& gradient, DType dtype, void* to);
  void Add(const at::Tensor& gradient, DType dtype, float* to);
  // Runs what is held.
  void Flush();
  // Forgets it.
  void Drop();

 private:
  void Hold(const at::Tensor& gradient, std::vector<kernels::device::ArrayPart> Work::*kind,
            const kernels::device::ArrayPart& part);

  const Run run_;
  Work work_;
  std::vector<at::Tensor> held_;
  std::int64_t held_bytes_ = 0;
};

}  // namespace ullage::grads
