#include "torchx/stand_in.h"

#include <ATen/core/Tensor.h>

#include <utility>

namespace ullage::torchx {
namespace {

thread_local int stand_in = 0;  // multiprocessors; 0: the CPU

}  // namespace

StandsForCuda::StandsForCuda(int multiprocessors)
    : before_(std::exchange(stand_in, multiprocessors)) {}

StandsForCuda::~StandsForCuda() {
  stand_in = before_;
}

bool ComputesOnCuda(c10::Device device) {
  return device.is_cuda() || (device.is_meta() && stand_in > 0);
}

bool ComputesOnCuda(const at::Tensor& tensor) {
  return ComputesOnCuda(tensor.device());
}

bool ComputesOnCpu(c10::Device device) {
  return device.is_cpu() || (device.is_meta() && stand_in == 0);
}

int StandInMultiprocessors() {
  return stand_in;
}

}  // namespace ullage::torchx
