// Time and memory of training steps on random tokens, and the hash that proves what was computed.
//
//   step_benchmark CONFIG_JSON DS_CONFIG [--cuda] [--batch 16] [--seq 512] [--steps 15]
//                  [--warmup 3] [--hash] [--random] [--parts] [--trace FILE]
//
// Weights are random, and so are the tokens: speed and memory do not depend on them. Several ranks
// are started with torchrun --no-python; the first prints. One line: median ms of a step, tokens/s,
// peak bytes of the device's allocator and of this process.
// With --random batches have between 16 and --seq tokens, and every 50 steps a line says what
// torch's allocator holds; the program fails when that is more than 1.02 of what is in use at most,
// more than ullage.device_memory leaves it, or when the engine still allocates.
// With --parts the updates of a step, which go on beside the next forward, are given time to end
// before it, and forward and backward are timed by themselves.
// With --trace one more step runs under torch's profiler, which writes a Chrome trace.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <stdio.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>

#include "memory/process.h"
#include "models/model.h"
#include "torchx/device.h"
#include "torchx/device_memory.h"
#include "ullage/engine.h"
#include "ullage/ranks.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model, config, trace;
  bool cuda = false, hash = false, random = false, parts = false;
  std::int64_t batch = 16, sequence = 512, steps = 15, warmup = 3;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  if (argc < 3) {
    fmt::print(stderr,
               "usage: step_benchmark CONFIG_JSON DS_CONFIG [--cuda] [--batch N] [--seq N] "
               "[--steps N] [--warmup N] [--hash] [--random] [--parts] [--trace FILE]\n");
    std::exit(2);
  }
  arguments.model = argv[1];
  arguments.config = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::atoll(argv[++i]) : 0; };
    if (name == "--cuda") arguments.cuda = true;
    if (name == "--hash") arguments.hash = true;
    if (name == "--random") arguments.random = true;
    if (name == "--parts") arguments.parts = true;
    if (name == "--trace" && i + 1 < argc) arguments.trace = argv[++i];
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

// An engine of several ranks chooses the device.
c10::Device DeviceOf(const Arguments& arguments) {
  return arguments.cuda ? ullage::torchx::CurrentCuda() : c10::Device(c10::kCPU);
}

// Forward and backward of the batch with this number.
at::Tensor RunMicroStep(ullage::Engine& engine, ullage::models::Model& model,
                        const Arguments& arguments, std::int64_t number) {
  // The first batch is the largest.
  const std::int64_t length =
      arguments.random && number > 0
          ? 16 + static_cast<std::int64_t>(static_cast<std::uint64_t>(number) * 2654435761U >> 7) %
                     (arguments.sequence - 15)
          : arguments.sequence;
  const at::Tensor ids =
      at::randint(1000, 30000, {arguments.batch, length},
                  at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(number)),
                  at::TensorOptions().dtype(at::kLong))
          .to(DeviceOf(arguments));
  const bool causal = model.task() == ullage::models::Task::kCausalLanguage;
  const at::Tensor labels = causal ? ids : ids.select(1, 0).remainder(2);
  const double count =
      static_cast<double>(causal ? arguments.batch * (length - 1) : arguments.batch);
  return engine
      .ForwardBackward({ids, labels},
                       [&model, count](const std::vector<at::Tensor>& inputs) {
                         ullage::models::Batch batch;
                         batch.input_ids = inputs[0];
                         batch.labels = inputs[1];
                         return std::vector<at::Tensor>{model.Loss(batch).loss / count};
                       })
      .front();
}

// What the run's operators need beside the engine, for ullage.device_memory.
std::int64_t OperatorBytes(const Arguments& arguments, const ullage::Settings& settings,
                           const std::shared_ptr<ullage::Ranks>& ranks,
                           const ullage::EngineOptions& options) {
  const auto model = ullage::models::MakeModel(arguments.model, 0, c10::kMeta);
  model->module().train();
  model->set_recompute(settings.recompute);
  return ullage::MeasureOperatorBytes(
      ullage::NamedParameters(model->module()), settings, ranks, options,
      [&](ullage::Engine& engine) { RunMicroStep(engine, *model, arguments, 0); });
}

// Whether the device's memory is kept well: see above.
bool TellMemory(const ullage::Engine& engine, std::int64_t step, std::int64_t allocations) {
  constexpr double kGiB = 1 << 30;
  const ullage::torchx::DeviceMemory memory = ullage::torchx::ReadDeviceMemory();
  const double ratio = static_cast<double>(memory.reserved_peak) /
                       static_cast<double>(std::max<std::int64_t>(1, memory.allocated_peak));
  const std::int64_t budget = engine.settings().ullage.device_memory.value_or(memory.total);
  const bool ok = ratio <= 1.02 && memory.reserved_peak + memory.outside() <= budget &&
                  engine.statistics().allocations == allocations;
  fmt::print(
      "MEMORY {} step {}: in use at most {:.3f} GiB, reserved at most {:.3f} GiB ({:.4f}), outside "
      "{:.3f} GiB, budget {:.3f} GiB; the engine allocated {} times until the second step, {} "
      "until now\n",
      ok ? "ok" : "FAILED", step, static_cast<double>(memory.allocated_peak) / kGiB,
      static_cast<double>(memory.reserved_peak) / kGiB, ratio,
      static_cast<double>(memory.outside()) / kGiB, static_cast<double>(budget) / kGiB, allocations,
      engine.statistics().allocations);
  return ok;
}

// Records what runs while it lives, kernels of the device included.
class Trace {
 public:
  explicit Trace(std::string path) : path_(std::move(path)) {
    namespace profiler = torch::profiler::impl;
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    const std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU,
                                                         profiler::ActivityType::CUDA};
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  }
  ~Trace() { torch::autograd::profiler::disableProfiler()->save(path_); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  std::string path_;
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
  const auto ranks =
      ullage::Ranks::FromEnvironment(std::chrono::seconds(settings.ullage.timeout_seconds));
  if (settings.ullage.device_memory) {
    options.operator_bytes = OperatorBytes(arguments, settings, ranks, options);
  }
  const auto start = Clock::now();
  ullage::Engine engine(ullage::NamedParameters(model->module()), settings, ranks, options);
  const double load_s = std::chrono::duration<double>(Clock::now() - start).count();
  if (ranks->rank() == 0) {
    for (const std::string& line : engine.StartLines()) fmt::print("     {}\n", line);
  }
  const c10::Device device = DeviceOf(arguments);

  const std::int64_t micro_steps = engine.batch_sizes().accumulation_steps;
  std::vector<double> times, part_times;
  double loss_value = 0, grad_norm = 0;
  std::int64_t allocations = 0;
  bool is_kept = true;
  for (std::int64_t step = 0; step < arguments.steps + arguments.warmup; ++step) {
    if (arguments.parts) std::this_thread::sleep_for(std::chrono::seconds(4));
    const auto begin = Clock::now();
    const auto milliseconds = [&begin] {
      return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    };
    at::Tensor loss;
    for (std::int64_t m = 0; m < micro_steps; ++m) {
      const std::int64_t number = (step * micro_steps + m) * ranks->world_size() + ranks->rank();
      loss = RunMicroStep(engine, *model, arguments, number);
    }
    if (arguments.parts && arguments.cuda) {
      ullage::torchx::Queue::OfOperators(device).Finish();
      if (step >= arguments.warmup) part_times.push_back(milliseconds());
    }
    grad_norm = engine.Step().grad_norm;
    loss_value = loss.item<double>();
    if (arguments.cuda) ullage::torchx::Queue::OfOperators(device).Finish();
    if (step == 1) allocations = engine.statistics().allocations;
    if (arguments.random && arguments.cuda && step % 50 == 49) {
      is_kept &= TellMemory(engine, step + 1, allocations);
    }
    if (step >= arguments.warmup) {
      times.push_back(milliseconds());
    }
  }
  const std::string hash = arguments.hash ? engine.ParametersSha256() : "";  // by all ranks
  if (!arguments.trace.empty()) {
    const Trace trace(arguments.trace);
    RunMicroStep(engine, *model, arguments, 0);
    engine.Step();
    if (arguments.cuda) ullage::torchx::Queue::OfOperators(device).Finish();
  }
  if (ranks->rank() != 0) return is_kept ? 0 : 1;
  const double median = Median(times);
  const auto tokens =
      static_cast<double>(arguments.batch * arguments.sequence * micro_steps) * 1000 / median;
  constexpr double kGiB = 1 << 30;
  fmt::print(
      "OURS {} {} rank(s) b{} s{} x{}: median {:.1f} ms/step (least {:.1f}), {:.0f} tokens/s a "
      "rank, device peak {:.2f} GiB, host RSS peak {:.2f} GiB, loaded in {:.1f} s, loss {:.4f} "
      "norm {:.4f}\n",
      arguments.config, ranks->world_size(), arguments.batch, arguments.sequence, micro_steps,
      median, *std::ranges::min_element(times), tokens,
      static_cast<double>(arguments.cuda ? ullage::torchx::DeviceBytesPeak() : 0) / kGiB,
      static_cast<double>(ullage::memory::PeakResidentBytes()) / kGiB, load_s, loss_value,
      grad_norm);
  if (!part_times.empty()) {
    fmt::print("     forward and backward: median {:.1f} ms (least {:.1f})\n", Median(part_times),
               *std::ranges::min_element(part_times));
  }
  const ullage::EngineStatistics statistics = engine.statistics();
  fmt::print("     gathers {} ahead {} overflows {}, micro-steps launched as a whole {}\n",
             statistics.gathers, statistics.gathered_ahead, statistics.gather_overflows,
             statistics.recorded_launches);
  if (arguments.hash) fmt::print("     parameters_sha256 {}\n", hash);
  ::fflush(stdout);
  return is_kept ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "step_benchmark: {}\n", error.what());
  return 1;
}
