// What is predicted of memory, beside what torch's allocator and the device say of a run.
//
//   prediction_benchmark JOBS_JSON [--cpu] [--dry] [--only NAME] [--events DIR]
//
// JOBS_JSON: a list of {"name", "model" (a config.json), "changes" (to it), "settings" (a
// ds_config), "batch", "tokens", "steps"}; paths are relative to the working directory. One line
// for each job, then how many were exact. With --events the requests of a job's last step are
// written to DIR/NAME.predicted and .measured, one on a line: bytes, phase, operator, parameter.
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/wait.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "memory/trace.h"
#include "models/model.h"
#include "planner/prediction.h"
#include "torchx/device.h"
#include "torchx/device_memory.h"
#include "torchx/meta_kernels.h"
#include "torchx/operator_watch.h"
#include "torchx/stand_in.h"
#include "torchx/storage_watch.h"
#include "ullage/engine.h"
#include "ullage/error.h"
#include "ullage/planner.h"

namespace {

using Json = nlohmann::json;
using ullage::memory::kPhaseNames;

std::size_t Index(ullage::memory::Phase phase) {
  return static_cast<std::size_t>(phase);
}

struct Job {
  std::string name, model;
  Json settings;
  std::int64_t batch = 1, tokens = 128, steps = 2;
};

struct Options {
  bool cuda = true;
  bool dry = false;    // predict only
  int times = 0;       // steps to time, instead of memory
  bool force = false;  // run what is refused, with all that can be left to operators
  std::string events;
};

// What is left of a budget to others than the engine.
struct Room {
  std::int64_t operators = 0, outside = 0;
};

// Ones: memory does not depend on values.
class Ones final : public ullage::WeightSource {
 public:
  void Read(const std::string&, std::span<const std::int64_t>, std::int64_t,
            std::span<float> values) override {
    std::ranges::fill(values, 0.01f);
  }
};

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return Json::parse(file);
}

Job JobOf(const Json& entry) {
  Job job;
  job.name = entry.at("name");
  Json config = ReadJson(entry.at("model"));
  if (entry.contains("changes")) config.update(entry["changes"]);
  job.model = (std::getenv("TMPDIR") != nullptr ? std::string(std::getenv("TMPDIR")) : "/tmp") +
              "/ullage-prediction-model.json";
  std::ofstream(job.model) << config.dump();
  job.settings = entry.at("settings");
  job.batch = entry.at("batch");
  job.tokens = entry.at("tokens");
  job.steps = entry.value("steps", 2);
  job.settings["train_micro_batch_size_per_gpu"] = job.batch;
  return job;
}

ullage::models::Batch BatchOf(const Job& job, ullage::models::Task task, c10::Device device) {
  const auto ones = [&](at::IntArrayRef shape) {
    return at::ones(shape, at::TensorOptions(device).dtype(at::kLong));
  };
  ullage::models::Batch batch;
  batch.input_ids = ones({job.batch, job.tokens});
  if (task == ullage::models::Task::kClassification) {
    batch.attention_mask = ones({job.batch, job.tokens});
    batch.labels = ones({job.batch});
  } else {
    batch.labels = ones({job.batch, job.tokens});
  }
  return batch;
}

void RunSteps(const Job& job, ullage::models::Model& model, ullage::Engine& engine,
              c10::Device device) {
  for (std::int64_t step = 0; step < job.steps; ++step) {
    for (std::int64_t m = 0; m < engine.batch_sizes().accumulation_steps; ++m) {
      const auto batch = BatchOf(job, model.task(), device);
      engine.Backward(engine.Forward([&] { return model.Loss(batch).loss; }));
    }
    engine.Step();
  }
}

std::unique_ptr<ullage::models::Model> ModelOf(const Job& job, const ullage::Settings& settings) {
  auto model = ullage::models::MakeModel(job.model, 0, c10::kMeta);
  model->module().train();
  model->set_recompute(settings.recompute);
  return model;
}

void WriteEvents(const std::string& path, const ullage::memory::Trace& trace,
                 const ullage::planner::Names& names) {
  std::ofstream file(path);
  const auto name = [](const std::vector<std::string>& list, std::int32_t index) {
    return index < 0 ? "-" : list[static_cast<std::size_t>(index)];
  };
  for (const auto& event : trace.events()) {
    if (event.storage < 0 && event.bytes == 0) continue;
    file << fmt::format("{} {} {} {} {}\n", event.bytes,
                        ullage::memory::kPhaseNames[static_cast<std::size_t>(event.phase)],
                        event.storage < 0 ? "engine:" + std::string(Name(event.tag)) : "operator",
                        name(names.operations, event.site.operation),
                        name(names.parameters, event.site.parameter));
  }
}

void WriteWork(const std::string& path, const ullage::memory::WorkLog& work) {
  std::ofstream file(path);
  for (const auto& [phase, kernel, count] : work.kernels()) {
    file << fmt::format("kernel {} {} {} {} {} {} {} {} {} {}\n", kPhaseNames[Index(phase)],
                        static_cast<int>(kernel.kind), static_cast<int>(kernel.type),
                        kernel.is_causal, kernel.batch, kernel.rows, kernel.columns, kernel.inner,
                        kernel.bytes, count);
  }
  for (std::size_t p = 0; p < ullage::memory::kPhaseCount; ++p) {
    const auto phase = static_cast<ullage::memory::Phase>(p);
    file << fmt::format("calls {} {}", kPhaseNames[p], work.calls(phase));
    for (std::size_t t = 0; t < ullage::memory::kTrafficCount; ++t) {
      file << ' ' << work.bytes(phase, static_cast<ullage::memory::Traffic>(t));
    }
    file << '\n';
  }
}

// Runs the job's steps with an engine, in a dry run or in earnest, followed by `trace`. `at_end` is
// called while the engine is there.
// Without `room`: where there is a budget, what operators need is measured.
void Follow(const Job& job, const ullage::Settings& settings, const Options& options, bool dry,
            const Room& room, const std::shared_ptr<ullage::Ranks>& ranks,
            const std::function<void()>& at_end) {
  Ones ones;
  const auto model = ModelOf(job, settings);
  std::optional<ullage::torchx::CountedOnMeta> counted;
  if (dry) counted.emplace();
  std::optional<ullage::torchx::StandsForCuda> stand_in;
  if (dry && options.cuda) stand_in.emplace();
  std::optional<ullage::torchx::OperatorWatch> operators;
  if (!options.events.empty()) operators.emplace();
  ullage::memory::Trace trace(operators ? &*operators : nullptr);
  if (operators) operators->Tell(&trace.work());
  ullage::EngineOptions engine_options;
  engine_options.cuda = options.cuda;
  engine_options.dry_run = dry;
  engine_options.weights = &ones;
  engine_options.trace = &trace;
  if (room.operators > 0) {
    engine_options.operator_bytes = room.operators;
    engine_options.outside_bytes = room.outside;
  } else if (!dry && settings.ullage.device_memory) {
    const auto measured = ModelOf(job, settings);
    engine_options.operator_bytes = ullage::MeasureOperatorBytes(
        ullage::NamedParameters(measured->module()), settings, ranks, engine_options,
        [&](ullage::Engine& engine) {
          const auto batch = BatchOf(job, measured->task(), ullage::torchx::CurrentCuda());
          engine.Backward(engine.Forward([&] { return measured->Loss(batch).loss; }));
        });
  }
  if (!dry && options.cuda) {
    static_cast<void>(ullage::torchx::CurrentCuda());
    ullage::torchx::RenewDevicePeaks();
  }
  ullage::Engine engine(ullage::NamedParameters(model->module()), settings, ranks, engine_options);
  ullage::planner::Names names;
  std::int32_t index = 0;
  for (const auto& parameter : model->module().named_parameters()) {
    names.parameters.push_back(parameter.key());
    if (operators) operators->Name(parameter.value(), index++);
  }
  const c10::Device device = dry            ? c10::Device(c10::kMeta)
                             : options.cuda ? ullage::torchx::CurrentCuda()
                                            : c10::Device(c10::kCPU);
  std::optional<ullage::torchx::StorageWatch> watch;
  if (operators) watch.emplace(device.type(), trace);
  RunSteps(job, *model, engine, device);
  watch.reset();
  if (operators) {
    names.operations = operators->operations();
    WriteEvents(fmt::format("{}/{}.{}", options.events, job.name, dry ? "predicted" : "measured"),
                trace, names);
    WriteWork(fmt::format("{}/{}.work", options.events, job.name), trace.work());
  }
  at_end();
}

// Milliseconds of a step, and of its parts where the device finishes each before the next.
struct Times {
  double step = 0, forward = 0, backward = 0, update = 0;
  ullage::torchx::DeviceMemory memory;  // at the end
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Times MeasureTimes(const Job& job, const ullage::Settings& settings, int steps, const Room& room,
                   const std::shared_ptr<ullage::Ranks>& ranks) {
  Ones ones;
  const auto model = ModelOf(job, settings);
  ullage::EngineOptions options;
  options.cuda = true;
  options.weights = &ones;
  if (room.operators > 0) {
    options.operator_bytes = room.operators;
    options.outside_bytes = room.outside;
  }
  ullage::Engine engine(ullage::NamedParameters(model->module()), settings, ranks, options);
  const c10::Device device = ullage::torchx::CurrentCuda();
  const auto batch = BatchOf(job, model->task(), device);
  std::vector<at::Tensor> inputs = {batch.input_ids, batch.labels};
  if (batch.attention_mask.defined()) inputs.push_back(batch.attention_mask);
  const auto finish = [&] { ullage::torchx::Queue::OfOperators(device).Finish(); };
  std::vector<double> whole, forwards, backwards, updates;
  const auto timed = [&](std::vector<double>& to, bool wait, const auto& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    if (wait) finish();
    to.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                     .count());
  };
  const auto step = [&](bool apart) {
    double forward = 0, backward = 0;
    for (std::int64_t m = 0; m < engine.batch_sizes().accumulation_steps; ++m) {
      if (!apart) {
        engine.ForwardBackward(inputs, [&](const std::vector<at::Tensor>&) {
          return std::vector<at::Tensor>{model->Loss(batch).loss};
        });
        continue;
      }
      at::Tensor loss;
      timed(forwards, true,
            [&] { loss = engine.Forward([&] { return model->Loss(batch).loss; }); });
      timed(backwards, true, [&] { engine.Backward(loss); });
      forward += forwards.back();
      backward += backwards.back();
    }
    if (!apart) return void(engine.Step());
    timed(updates, true, [&] { engine.Step(); });
    forwards.back() = forward;
    backwards.back() = backward;
  };
  for (int i = 0; i < 3; ++i) step(false);
  finish();
  // Steps in a row, as a run makes them: what one leaves behind overlaps with the next.
  for (int i = 0; i < 3; ++i) {
    timed(whole, true, [&] {
      for (int s = 0; s < steps; ++s) step(false);
    });
    whole.back() /= steps;
  }
  const auto memory = ullage::torchx::ReadDeviceMemory();
  for (int i = 0; i < 3; ++i) step(true);
  return {Median(whole), forwards.back(), backwards.back(), updates.back(), memory};
}

struct Measured {
  std::int64_t allocated = 1, reserved = 1, device = 1;
};

Measured Measure(const Job& job, const ullage::Settings& settings, const Options& options,
                 const Room& room, const std::shared_ptr<ullage::Ranks>& ranks) {
  Measured measured;
  Follow(job, settings, options, /*dry=*/false, room, ranks, [&] {
    if (!options.cuda) return;
    const auto memory = ullage::torchx::ReadDeviceMemory();
    measured = {memory.allocated_peak, memory.reserved_peak, memory.total - memory.free};
  });
  return measured;
}

ullage::MemoryPrediction PredictJob(const Job& job, const ullage::Settings& settings,
                                    const Options& options) {
  ullage::EngineOptions engine_options;
  engine_options.cuda = options.cuda;
  std::unique_ptr<ullage::models::Model> model;
  return ullage::Predict(
      [&] {
        model = ModelOf(job, settings);
        return ullage::NamedParameters(model->module());
      },
      settings, ullage::Ranks::Imagined(0, 1), engine_options, ullage::FindDevice("h200"),
      [&](ullage::Engine& engine) { RunSteps(job, *model, engine, c10::kMeta); });
}

// A job whose budget was refused, with the largest room for operators that any plan accepts: what
// happens to it.
std::string Forced(const Job& job, const ullage::Settings& settings, const Options& options,
                   const std::shared_ptr<ullage::Ranks>& ranks) {
  ullage::Settings unbounded = settings;
  unbounded.ullage.device_memory.reset();
  const ullage::MemoryPrediction needed = PredictJob(job, unbounded, options);
  Room room{needed.operators, needed.outside};
  constexpr std::int64_t kStep = 4 << 20;
  for (; room.operators > 0; room.operators -= kStep) {
    try {
      Measure(job, settings, options, room, ranks);
      return fmt::format("{:<36} forced: FITS with {} for operators", job.name, room.operators);
    } catch (const ullage::OutOfMemoryError& error) {
      const std::string_view what = error.what();
      if (what.find("do not suffice") != std::string_view::npos) continue;  // no plan
      return fmt::format("{:<36} forced: does not fit: {}", job.name, what.substr(0, 90));
    }
  }
  return fmt::format("{:<36} forced: no plan", job.name);
}

double Percent(std::int64_t predicted, std::int64_t measured) {
  return 100.0 * (static_cast<double>(predicted) / static_cast<double>(measured) - 1);
}

// Each job in a process of its own: what libraries keep of an earlier one would be measured, too.
void RunApart(const std::function<std::string()>& body, std::string& answer) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string text = body();
    const bool is_written = write(ends[1], text.data(), text.size()) >= 0;
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
}

// The job's line; it ends with " =" where the prediction is exact.
std::string LineOf(const Json& entry, const Options& options) {
  try {
    const Job job = JobOf(entry);
    const auto settings = ullage::Settings::FromText(job.settings.dump());
    const auto ranks = ullage::Ranks::FromEnvironment(std::chrono::seconds(600));
    const auto start = std::chrono::steady_clock::now();
    ullage::MemoryPrediction predicted;
    try {
      predicted = PredictJob(job, settings, options);
    } catch (const ullage::OutOfMemoryError&) {
      if (!options.force) throw;
      return Forced(job, settings, options, ranks);
    }
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                        std::chrono::steady_clock::now() - start)
                        .count();
    if (!options.events.empty()) {
      Follow(job, settings, options, /*dry=*/true, /*room=*/{}, ranks, [] {});
    }
    const ullage::StepTime expected = predicted.time.value_or(ullage::StepTime());
    if (options.dry) {
      return fmt::format("{:<36}{:>13}{:>13}{:>13}{:>11.3f} {} {}", job.name, predicted.allocated,
                         predicted.reserved, predicted.operators, 1e3 * expected.total(),
                         predicted.host, expected.bound);
    }
    // Within a budget the run keeps what was predicted, to the byte.
    const Room room =
        settings.ullage.device_memory ? Room{predicted.operators, predicted.outside} : Room{};
    if (options.times > 0) {
      const Times times = MeasureTimes(job, settings, options.times, room, ranks);
      return fmt::format(
          "{:<36}{:>11.3f}{:>11.3f}{:>8.3f}{:>11.3f}{:>11.3f}{:>11.3f}{:>9.2f}{:>9.2f} {}",
          job.name, 1e3 * expected.total(), times.step, 1e3 * expected.total() / times.step,
          times.forward, times.backward, times.update,
          Percent(predicted.reserved, times.memory.reserved_peak),
          Percent(predicted.device(), times.memory.total - times.memory.free), expected.bound);
    }
    const Measured measured = Measure(job, settings, options, room, ranks);
    return fmt::format("{:<36}{:>13}{:>13}{:>9.4f}{:>13}{:>9.3f}{:>13}{:>9.3f}{:>6}{}", job.name,
                       predicted.allocated, measured.allocated,
                       Percent(predicted.allocated, measured.allocated), measured.reserved,
                       Percent(predicted.reserved, measured.reserved), measured.device,
                       Percent(predicted.device(), measured.device), ms,
                       predicted.allocated == measured.allocated ? " =" : "");
  } catch (const std::exception& error) {
    return fmt::format("{:<36} FAILED: {}", entry.at("name").get<std::string>(),
                       std::string_view(error.what()).substr(0, 500));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string only;
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--dry") options.dry = true;
    if (name == "--cpu") options.cuda = false;
    if (name == "--force") options.force = true;
    if (name == "--times" && i + 1 < argc) options.times = std::stoi(argv[++i]);
    if (name == "--only" && i + 1 < argc) only = argv[++i];
    if (name == "--events" && i + 1 < argc) options.events = argv[++i];
  }
  int exact = 0, all = 0;
  fmt::print("{:<36}{:>13}{:>13}{:>9}{:>13}{:>9}{:>13}{:>9}{:>6}\n", "job", "predicted",
             "allocated", "%", "reserved", "%", "device", "%", "ms");
  std::fflush(stdout);
  for (const Json& entry : ReadJson(argv[1])) {
    if (!only.empty() && entry.at("name") != only) continue;
    std::string line;
    RunApart([&] { return LineOf(entry, options); }, line);
    exact += line.ends_with(" =");
    ++all;
    fmt::print("{}\n", line.empty() ? entry.at("name").get<std::string>() + " CRASHED" : line);
    std::fflush(stdout);
  }
  fmt::print("{} of {} exact\n", exact, all);
}
