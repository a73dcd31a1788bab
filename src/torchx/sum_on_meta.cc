#include "torchx/sum_on_meta.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include <algorithm>
#include <bit>

#include "torchx/stand_in.h"

namespace ullage::torchx {
namespace {

using at::Tensor;

constexpr std::int64_t DivideUp(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t PowerBelow(std::int64_t n, std::int64_t most) {
  if (n >= most) return most;
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, n))));
}

struct Scratch {
  std::int64_t parts = 0, semaphores = 0;  // bytes
};

// Of a sum over rows of a contiguous matrix, and over its columns. How torch 2.11 sets up its
// reduction (ATen/native/cuda/Reduce.cuh, setReduceConfig), for fp32 sums.
Scratch ScratchOf(std::int64_t outputs, std::int64_t inputs, bool over_columns) {
  constexpr std::int64_t kThreads = 512, kWarp = 32, kVector = 4, kThreadsOfProcessor = 2048;
  constexpr std::int64_t kLeast = 16, kMost = 256;  // values of a thread
  const std::int64_t vector = !over_columns && outputs % kVector == 0 ? kVector : 1;
  const std::int64_t threads = kThreads / vector;
  std::int64_t across = over_columns ? inputs : outputs / vector;
  if (over_columns && outputs == 1 && inputs > 128) across /= kVector;
  const std::int64_t down = over_columns ? outputs : inputs;
  const std::int64_t wide = PowerBelow(across, threads), high = PowerBelow(down, threads);
  std::int64_t width = std::min(wide, kWarp);
  const std::int64_t height = std::min(high, threads / width);
  width = std::min(wide, threads / height);

  std::int64_t input_step = over_columns ? width : 1;
  std::int64_t output_step = over_columns ? 1 : width;
  const auto values = [&] { return DivideUp(inputs, input_step); };
  const bool splits_rows = values() >= height * kLeast || values() >= kMost;
  (splits_rows ? input_step : output_step) *= height;
  const std::int64_t grid = DivideUp(outputs / vector, output_step);
  const std::int64_t wanted = StandInMultiprocessors() * (kThreadsOfProcessor / (width * height));
  if (!splits_rows || values() < kMost || grid > wanted) return {};
  const std::int64_t blocks = std::max(std::min(DivideUp(wanted, grid), DivideUp(values(), kLeast)),
                                       DivideUp(values(), kMost));
  if (blocks <= 1) return {};
  constexpr std::int64_t kSum = sizeof(float);
  return {kSum * outputs * blocks * (over_columns ? 1 : width * vector),
          static_cast<std::int64_t>(sizeof(int)) * grid};
}

}  // namespace

Tensor SumOnMeta(const Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                 std::optional<at::ScalarType> dtype) {
  Tensor out = at::meta::sum(self, dim, keepdim, dtype);
  if (!ComputesOnCuda(self) || self.numel() == 0 || !self.is_contiguous()) return out;
  const bool over_all = !dim || dim->empty() || out.numel() == 1;
  const bool over_last = over_all || std::ranges::any_of(*dim, [&](std::int64_t d) {
                           return d == -1 || d == self.dim() - 1;
                         });
  const Scratch scratch = ScratchOf(out.numel(), self.numel() / out.numel(), over_last);
  const auto bytes = self.options().dtype(at::kByte);
  const Tensor parts = at::empty({scratch.parts}, bytes);
  const Tensor semaphores = at::empty({scratch.semaphores}, bytes);
  return out;
}

}  // namespace ullage::torchx
