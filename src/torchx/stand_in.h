// What device tensors on Meta stand for in a dry run.
#pragma once

#include <c10/core/Device.h>

namespace at {
class Tensor;
}

namespace ullage::torchx {

// While this lives, what the current thread computes on Meta stands for the same on a CUDA device;
// else for the CPU. Where kernels differ so does what they allocate.
class StandsForCuda {
 public:
  // `multiprocessors` of the device: kernels split their work, and what they put parts of it in.
  explicit StandsForCuda(int multiprocessors = 132);
  ~StandsForCuda();
  StandsForCuda(const StandsForCuda&) = delete;
  StandsForCuda& operator=(const StandsForCuda&) = delete;

 private:
  const int before_;
};

// Whether operators on `device`, or that of `tensor`, are CUDA's or stand for them.
bool ComputesOnCuda(c10::Device device);
bool ComputesOnCuda(const at::Tensor& tensor);
// The same for the CPU's.
bool ComputesOnCpu(c10::Device device);
// Of the device that the current thread's Meta stands for; 0 when that is the CPU.
int StandInMultiprocessors();

}  // namespace ullage::torchx
