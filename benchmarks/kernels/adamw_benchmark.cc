// Elements per second of AdamW on a slice, beside torch._fused_adamw_ in the same process.
//
//   adamw_benchmark [--benchmark_...]        ULLAGE_THREADS=16 adamw_benchmark ...
//
// Each repetition runs all variants once in an order that alternates, so that noise of the machine
// falls on all of them alike. One thread is timed by its CPU clock, which stops while another
// process has the core; several by the wall. The ratios are medians over the repetitions of the
// ratio within one repetition; the rates are medians too.
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "kernels/adamw.h"
#include "kernels/targets.h"

namespace {

using ullage::DType;
using ullage::kernels::AdamW;
using ullage::kernels::AdamWStep;
using ullage::kernels::WeightRange;

int Threads() {
  const char* threads = std::getenv("ULLAGE_THREADS");
  return threads == nullptr ? 1 : std::max(1, std::atoi(threads));
}

// 64 MiB an fp32 array for one thread, 1 GiB for several: far beyond the caches.
int64_t Elements() {
  return int64_t{1} << (Threads() == 1 ? 24 : 28);
}

struct State {
  at::Tensor master = at::randn({Elements()});
  at::Tensor exp_avg = at::zeros({Elements()});
  at::Tensor exp_avg_sq = at::zeros({Elements()});
};

AdamWStep Step() {
  AdamWStep step;
  step.lr = 1e-5;
  step.weight_decay = 0.01;
  step.t = 100;
  return step;
}

class Variants {
 public:
  Variants() : gradient_(at::randn({Elements()})), t_(at::ones({}).mul_(100)) {
    gradient16_ = gradient_.to(at::kBFloat16);
    weight16_ = ours_.master.to(at::kBFloat16);
    extension_ = at::zeros({Elements()}, at::kShort);
    torch_weight16_ = weight16_.clone();
    unpacked_ = at::zeros({Elements()});
  }

  void OursFloat() { Ours({DType::kFloat32, ours_.master.mutable_data_ptr()}, gradient_); }
  void OursBFloat16Gradient() {
    Ours({DType::kFloat32, ours_.master.mutable_data_ptr()}, gradient16_);
  }
  void OursBFloat16() {
    Ours({DType::kBFloat16, weight16_.mutable_data_ptr(), extension_.mutable_data_ptr()},
         gradient16_);
  }
  void TorchFloat() { Torch(gradient_); }
  void TorchWithCasts() {
    unpacked_.copy_(gradient16_);
    Torch(unpacked_);
    torch_weight16_.copy_(torch_.master);
  }

 private:
  void Ours(const WeightRange& weights, const at::Tensor& gradient) {
    const DType dtype = gradient.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16;
    const auto* gradients = static_cast<const std::byte*>(gradient.const_data_ptr());
    // The grain of the optimizer on slices.
    ullage::ParallelFor(0, Elements(), 1 << 16, [&](int64_t first, int64_t last) {
      AdamW(Step(), ullage::kernels::Skip(weights, first), dtype,
            gradients + first * ullage::ElementBytes(dtype),
            ours_.exp_avg.mutable_data_ptr<float>() + first,
            ours_.exp_avg_sq.mutable_data_ptr<float>() + first, last - first);
    });
  }

  void Torch(const at::Tensor& gradient) {
    at::_fused_adamw_({torch_.master}, {gradient}, {torch_.exp_avg}, {torch_.exp_avg_sq}, {}, {t_},
                      1e-5, 0.9, 0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

  State ours_, torch_;
  at::Tensor gradient_, gradient16_, weight16_, extension_, torch_weight16_, unpacked_, t_;
};

double Seconds() {
  timespec now{};
  clock_gettime(Threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double MedianRatio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  std::vector<double> ratios(numerators.size());
  std::ranges::transform(numerators, denominators, ratios.begin(), std::divides<>());
  return Median(ratios);
}

void BM_AdamW(benchmark::State& state) {
  Variants variants;
  const std::array<std::function<void()>, 5> run = {
      [&] { variants.OursFloat(); }, [&] { variants.TorchFloat(); },
      [&] { variants.OursBFloat16(); }, [&] { variants.TorchWithCasts(); },
      [&] { variants.OursBFloat16Gradient(); }};
  for (const auto& variant : run) variant();

  std::array<std::vector<double>, 5> seconds;
  bool forwards = true;
  for (auto _ : state) {
    for (size_t i = 0; i < run.size(); ++i) {
      const size_t which = forwards ? i : run.size() - 1 - i;
      const double start = Seconds();
      run[which]();
      seconds[which].push_back(Seconds() - start);
    }
    forwards = !forwards;
  }

  const auto rate = [&](size_t which) {
    return static_cast<double>(Elements()) / Median(seconds[which]);
  };
  state.counters["torch_fp32"] = rate(1);
  state.counters["ours_fp32"] = rate(0);
  state.counters["ours_bf16_gradient"] = rate(4);
  state.counters["ours_bf16_gradient_and_weight"] = rate(2);
  state.counters["torch_fp32_and_two_casts"] = rate(3);
  state.counters["ratio_1_fp32_to_torch"] = MedianRatio(seconds[1], seconds[0]);
  state.counters["ratio_2_bf16_gradient_to_torch"] = MedianRatio(seconds[1], seconds[4]);
  state.counters["ratio_3_bf16_gradient_and_weight_to_torch"] = MedianRatio(seconds[1], seconds[2]);
  state.counters["ratio_4_bf16_gradient_and_weight_to_torch_and_two_casts"] =
      MedianRatio(seconds[3], seconds[2]);
  state.SetLabel(ullage::kernels::TargetName());
}
BENCHMARK(BM_AdamW)->Iterations(31)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(Threads());
  ullage::SetWorkers(Threads());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
