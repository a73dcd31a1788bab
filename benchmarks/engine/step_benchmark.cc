// Time and memory of training steps on random tokens, and the hash that proves what was computed.
//
//   step_benchmark CONFIG_JSON DS_CONFIG [--cuda] [--batch 16] [--seq 512] [--steps 15] [--warmup
//   3]
//                  [--hash] [--parts]
//
// With --parts the updates of a step, which go on beside the next forward, are given time to end
// before it, and forward and backward are timed by themselves.
//
// Weights are random, and so are the tokens: speed and memory do not depend on them. Several ranks
// are started with torchrun --no-python; the first prints. One line: median ms of a step, tokens/s,
// peak bytes of the device's allocator and of this process.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <stdio.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "memory/process.h"
#include "models/model.h"
#include "torchx/device.h"
#include "ullage/engine.h"
#include "ullage/ranks.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model, config;
  bool cuda = false, hash = false, parts = false;
  std::int64_t batch = 16, sequence = 512, steps = 15, warmup = 3;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  if (argc < 3) {
    fmt::print(stderr,
               "usage: step_benchmark CONFIG_JSON DS_CONFIG [--cuda] [--batch N] [--seq N] "
               "[--steps N] [--warmup N] [--hash] [--parts]\n");
    std::exit(2);
  }
  arguments.model = argv[1];
  arguments.config = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::atoll(argv[++i]) : 0; };
    if (name == "--cuda") arguments.cuda = true;
    if (name == "--hash") arguments.hash = true;
    if (name == "--parts") arguments.parts = true;
    if (name == "--batch") arguments.batch = number();
    if (name == "--seq") arguments.sequence = number();
    if (name == "--steps") arguments.steps = number();
    if (name == "--warmup") arguments.warmup = number();
  }
  return arguments;
}

// Uniform in +-0.03, a function of name and index: no file, and no time.
class RandomWeights final : public ullage::WeightSource {
 public:
  void Read(const std::string& name, std::span<const std::int64_t> shape, std::int64_t first,
            std::span<float> values) override {
    const auto seed = static_cast<std::uint32_t>(std::hash<std::string>{}(name));
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto x =
          static_cast<std::uint32_t>(static_cast<std::uint64_t>(first) + i) * 2654435761U + seed;
      x ^= x >> 15;
      x *= 2246822519U;
      x ^= x >> 13;
      const float uniform = static_cast<float>(x >> 8) * 0x1p-24f - 0.5f;
      values[i] = shape.size() < 2 ? 1.0f + 0.01f * uniform : 0.06f * uniform;
    }
  }
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = Parse(argc, argv);
  ullage::Settings settings = ullage::Settings::FromFile(arguments.config);
  const auto model = ullage::models::MakeModel(arguments.model, 0, c10::kMeta);
  model->module().train();
  model->set_recompute(settings.recompute);
  RandomWeights weights;
  ullage::EngineOptions options;
  options.cuda = arguments.cuda;
  options.weights = &weights;
  const auto start = Clock::now();
  ullage::Engine engine(ullage::NamedParameters(model->module()), settings, options);
  const int rank = engine.ranks().rank(), ranks = engine.ranks().world_size();
  const c10::Device device =
      arguments.cuda ? ullage::torchx::CurrentCuda() : c10::Device(c10::kCPU);
  const double load_s = std::chrono::duration<double>(Clock::now() - start).count();

  const std::int64_t micro_steps = engine.batch_sizes().accumulation_steps;
  std::vector<double> times, part_times;
  double loss_value = 0, grad_norm = 0;
  for (std::int64_t step = 0; step < arguments.steps + arguments.warmup; ++step) {
    if (arguments.parts) std::this_thread::sleep_for(std::chrono::seconds(4));
    const auto begin = Clock::now();
    const auto milliseconds = [&begin] {
      return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    };
    at::Tensor loss;
    for (std::int64_t m = 0; m < micro_steps; ++m) {
      const at::Tensor ids =
          at::randint(1000, 30000, {arguments.batch, arguments.sequence},
                      at::make_generator<at::CPUGeneratorImpl>(
                          static_cast<std::uint64_t>((step * micro_steps + m) * ranks + rank)),
                      at::TensorOptions().dtype(at::kLong))
              .to(device);
      ullage::models::Batch batch;
      batch.input_ids = ids;
      const bool causal = model->task() == ullage::models::Task::kCausalLanguage;
      batch.labels = causal ? ids : ids.select(1, 0).remainder(2);
      const double count = static_cast<double>(causal ? arguments.batch * (arguments.sequence - 1)
                                                      : arguments.batch);
      loss = engine.Forward([&] { return model->Loss(batch).loss / count; });
      engine.Backward(loss);
    }
    if (arguments.parts && arguments.cuda) {
      ullage::torchx::Queue::OfOperators(device).Finish();
      if (step >= arguments.warmup) part_times.push_back(milliseconds());
    }
    grad_norm = engine.Step().grad_norm;
    loss_value = loss.item<double>();
    if (arguments.cuda) ullage::torchx::Queue::OfOperators(device).Finish();
    if (step >= arguments.warmup) {
      times.push_back(milliseconds());
    }
  }
  const std::string hash = arguments.hash ? engine.ParametersSha256() : "";  // by all ranks
  if (rank != 0) return 0;
  const double median = Median(times);
  const auto tokens =
      static_cast<double>(arguments.batch * arguments.sequence * micro_steps) * 1000 / median;
  constexpr double kGiB = 1 << 30;
  fmt::print(
      "OURS {} {} rank(s) b{} s{} x{}: median {:.1f} ms/step (least {:.1f}), {:.0f} tokens/s a "
      "rank, device peak "
      "{:.2f} "
      "GiB, host RSS peak {:.2f} GiB, loaded in {:.1f} s, loss {:.4f} norm {:.4f}\n",
      arguments.config, ranks, arguments.batch, arguments.sequence, micro_steps, median,
      *std::ranges::min_element(times), tokens,
      static_cast<double>(arguments.cuda ? ullage::torchx::DeviceBytesPeak() : 0) / kGiB,
      static_cast<double>(ullage::memory::PeakResidentBytes()) / kGiB, load_s, loss_value,
      grad_norm);
  if (!part_times.empty()) {
    fmt::print("     forward and backward: median {:.1f} ms (least {:.1f})\n", Median(part_times),
               *std::ranges::min_element(part_times));
  }
  const ullage::EngineStatistics statistics = engine.statistics();
  fmt::print("     gathers {} ahead {} overflows {}\n", statistics.gathers,
             statistics.gathered_ahead, statistics.gather_overflows);
  if (arguments.hash) fmt::print("     parameters_sha256 {}\n", hash);
  ::fflush(stdout);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "step_benchmark: {}\n", error.what());
  return 1;
}
