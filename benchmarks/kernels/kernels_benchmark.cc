// Bytes per second of the kernels that have nothing of torch's beside them, on one thread and
// arrays far beyond the caches. "memcpy" is the yardstick: it counts bytes read and written too.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/cast.h"
#include "kernels/norm.h"
#include "kernels/targets.h"
#include "kernels/write_back.h"

namespace {

namespace kernels = ullage::kernels;
using ullage::DType;

constexpr int64_t kElements = int64_t{1} << 24;

std::vector<float>& Floats() {
  static std::vector<float> values(kElements, 1.5f);
  return values;
}

std::vector<uint16_t>& Halves() {
  static std::vector<uint16_t> values(kElements, 0x3fc0);  // bf16 1.5
  return values;
}

void SetBytes(benchmark::State& state, int64_t bytes_per_element) {
  state.SetBytesProcessed(state.iterations() * kElements * bytes_per_element);
  state.SetLabel(kernels::TargetName());
}

void BM_Memcpy(benchmark::State& state) {
  static std::vector<float> copy(kElements);
  for (auto _ : state) {
    std::memcpy(copy.data(), Floats().data(), kElements * sizeof(float));
    benchmark::ClobberMemory();
  }
  SetBytes(state, 8);
}
BENCHMARK(BM_Memcpy)->Unit(benchmark::kMillisecond);

void BM_SumOfSquares(benchmark::State& state) {
  for (auto _ : state) {
    kernels::SquareSum sum;
    kernels::AddSumOfSquares(DType::kFloat32, Floats().data(), kElements, sum);
    benchmark::DoNotOptimize(sum);
  }
  SetBytes(state, 4);
}
BENCHMARK(BM_SumOfSquares)->Unit(benchmark::kMillisecond);

void BM_SumOfSquaresOfBFloat16(benchmark::State& state) {
  for (auto _ : state) {
    kernels::SquareSum sum;
    kernels::AddSumOfSquares(DType::kBFloat16, Halves().data(), kElements, sum);
    benchmark::DoNotOptimize(sum);
  }
  SetBytes(state, 2);
}
BENCHMARK(BM_SumOfSquaresOfBFloat16)->Unit(benchmark::kMillisecond);

void BM_FloatToBFloat16(benchmark::State& state) {
  for (auto _ : state) {
    kernels::Convert(DType::kFloat32, Floats().data(), DType::kBFloat16, Halves().data(),
                     kElements);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 6);
}
BENCHMARK(BM_FloatToBFloat16)->Unit(benchmark::kMillisecond);

void BM_AddBFloat16ToFloat(benchmark::State& state) {
  static std::vector<float> sum(kElements);
  for (auto _ : state) {
    kernels::AddToFloat(DType::kBFloat16, Halves().data(), sum.data(), kElements);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 10);
}
BENCHMARK(BM_AddBFloat16ToFloat)->Unit(benchmark::kMillisecond);

void BM_AdoptNoWrites(benchmark::State& state) {
  static std::vector<uint16_t> before = Halves();
  static std::vector<int16_t> extension(kElements, 7);
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::AdoptWrites(
        before.data(), {DType::kBFloat16, Halves().data(), extension.data()}, kElements));
  }
  SetBytes(state, 4);
}
BENCHMARK(BM_AdoptNoWrites)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
