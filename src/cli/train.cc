// `ullage train`: from a model directory and a token file to a trained model directory.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "checkpoint/checkpoint_folder.h"
#include "cli/agreement.h"
#include "cli/choice.h"
#include "cli/commands.h"
#include "cli/evaluation.h"
#include "cli/interrupt.h"
#include "cli/model_directory.h"
#include "cli/output_directory.h"
#include "cli/probe.h"
#include "cli/report.h"
#include "cli/run_state.h"
#include "cli/setup.h"
#include "cli/training_loop.h"
#include "config/print_effective.h"
#include "files/atomic_directory.h"
#include "memory/process.h"
#include "ullage/engine.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kBFloat16:
      return "bf16 with fp32 master weights";
    case Precision::kFloat16:
      return "fp16 with fp32 master weights and a loss scale";
  }
  return "?";
}

constexpr std::size_t kLongestPath = 4096;

// Before a checkpoint brings the values.
class NoWeights final : public WeightSource {
 public:
  void Read(const std::string&, std::span<const std::int64_t>, std::int64_t,
            std::span<float> values) override {
    std::ranges::fill(values, 0.0f);
  }
};

class Training {
 public:
  Training(const TrainArguments& arguments, const CommandLine& command_line)
      : arguments_(arguments), command_line_(command_line) {}

  int Run() {
    Meet();
    PrintStart();
    MakeEngine();
    if (is_first()) PrepareOutput();
    RunNumbers run;
    {
      TrainingLoop loop(arguments_, *setup_, *engine_, metrics_.get(),
                        [this](const EvaluationResult&) { KeepBest(); });
      run = loop.Run();
    }
    Finish(run);
    return run.interrupted_by == 0 ? 0 : 128 + run.interrupted_by;
  }

 private:
  // Ranks meet before anything is checked, so that a mistake which all of them see is told once.
  void Meet() {
    Settings settings;
    std::exception_ptr error;
    try {
      settings = Settings::FromFile(arguments_.config);
    } catch (const Error&) {
      error = std::current_exception();
    }
    ranks_ = Ranks::FromEnvironment(std::chrono::seconds(settings.ullage.timeout_seconds));
    Together(ranks_->comm(), [&] {
      if (error) std::rethrow_exception(error);
    });
    const std::optional<std::string> resume_path = FindResumePath();
    Together(ranks_->comm(), [&] {
      choice_lines_ = ChooseWithinBudget(fs_, arguments_, *ranks_, settings);
      setup_ = std::make_unique<TrainSetup>(fs_, arguments_, settings, ranks_->world_size(),
                                            resume_path);
    });
  }

  // The first rank looks, so that all take the same.
  std::optional<std::string> FindResumePath() {
    std::optional<std::string> path;
    Together(ranks_->comm(), [&] {
      if (is_first()) path = FindCheckpoint(fs_, arguments_, resume_lines_);
      if (path && path->size() >= kLongestPath) {
        throw ConfigError(fmt::format("{}: a path of {} bytes", *path, path->size()),
                          "use a shorter one");
      }
    });
    std::vector<char> text(kLongestPath);
    if (path) path->copy(text.data(), path->size());
    ranks_->comm().Broadcast(std::as_writable_bytes(std::span(text)), 0,
                             static_cast<std::uint32_t>(Item::kReady));
    if (text.front() == '\0') return std::nullopt;
    return std::string(text.data());
  }

  void PrintStart() const {
    if (!is_first()) return;
    for (const std::string& line : resume_lines_) fmt::print("{}\n", line);
    for (const std::string& line : choice_lines_) fmt::print("{}\n", line);
    fmt::print("{}", config::PrintEffective(setup_->settings));
    for (const std::string& line : setup_->Lines(ranks_->world_size())) fmt::print("{}\n", line);
    fmt::print("precision: {}; {} threads a rank; seed {}\n", Name(setup_->settings.precision),
               at::get_num_threads(), arguments_.seed);
  }

  void MakeEngine() {
    EngineOptions options;
    options.seed = arguments_.seed;
    NoWeights no_weights;
    options.weights = setup_->weights.get();
    if (setup_->resume) options.weights = &no_weights;
    options.cuda = arguments_.cuda;
    if (arguments_.save_every > 0) options.save_buffer_bytes = arguments_.save_buffer;
    setup_->model->set_recompute(setup_->settings.recompute);
    options.default_no_decay = setup_->model->no_decay_patterns();
    KeepRoomForOperators(arguments_, *setup_, ranks_, options);
    const std::int64_t before = memory::ResidentBytes();
    engine_ = std::make_unique<Engine>(NamedParameters(setup_->model->module()), setup_->settings,
                                       ranks_, options);
    if (setup_->resume) Load(setup_->resume->path);
    load_raised_bytes_ = memory::PeakResidentBytes() - before;
    setup_->weights.reset();  // its files
    if (!is_first()) return;
    for (const std::string& line : engine_->StartLines()) fmt::print("{}\n", line);
    fmt::print("{}", engine_->PlanText());
  }

  // Every rank is told what went wrong on any; the first one says it.
  void Load(const std::string& path) {
    try {
      engine_->LoadCheckpoint(path);
    } catch (const CommError&) {
      throw;
    } catch (const Error&) {
      if (is_first()) throw;
      throw FailedElsewhere();
    }
  }

  void PrepareOutput() {
    fs_.CreateDirectories(arguments_.output);
    const std::string best = BestPath();
    if (!setup_->resume && fs_.Stat(best + "/" + kRunFile))
      fs_.RemoveTree(best);  // of an earlier run
    WriteWhole(fs_, arguments_.output + "/" + kRunFile, RunJson());
    metrics_ = std::make_unique<MetricsFile>(fs_, arguments_.output,
                                             setup_->resume ? setup_->resume->steps : 0);
    if (arguments_.save_every > 0) {  // a folder that cannot be written to is told before training
      checkpoint::CheckpointFolder(fs_, arguments_.output + "/" + kCheckpoints).Prepare();
    }
  }

  std::string BestPath() const { return arguments_.output + "/best"; }

  std::string RunJson() const {
    Json settings = Json::object();
    for (const EffectiveSetting& row : setup_->settings.Effective()) {
      settings[row.key] = {{"value", row.value}, {"source", row.source}};
    }
    const Json run = {{"ullage", ULLAGE_VERSION},
                      {"torch", ULLAGE_TORCH_VERSION},
                      {"command", command_line_},
                      {"model_family", setup_->model->family()},
                      {"world_size", ranks_->world_size()},
                      {"threads", at::get_num_threads()},
                      {"seed", arguments_.seed},
                      {"settings", std::move(settings)}};
    return run.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }

  // Collective; rank 0 writes, and holds one piece at a time.
  void WriteModel(const std::string& directory) {
    std::unique_ptr<ModelDirectoryWriter> writer;
    if (is_first()) {
      writer = std::make_unique<ModelDirectoryWriter>(fs_, directory, *setup_->model,
                                                      setup_->parameters, arguments_.export_dtype);
    }
    engine_->ForEachParameter([&](const Engine::ParameterPiece& piece) {
      if (writer) writer->Append(piece.values);
    });
    if (writer) writer->Finish(arguments_.model);
  }

  void KeepBest() {
    if (!is_first()) {
      WriteModel("");
      return;
    }
    files::AtomicDirectory best(fs_, BestPath());
    WriteModel(best.path());
    WriteWhole(fs_, best.PathOf(kRunFile), RunJson());
    best.Commit();
  }

  void Finish(RunNumbers& run) {
    if (run.interrupted_by != 0 && is_first()) {
      fmt::print("interrupted by a signal; writing the model after {} steps\n",
                 run.resumed_at + std::ssize(run.steps));
    }
    WriteModel(arguments_.output);
    if (is_first()) fmt::print("model written to {}\n", arguments_.output);
    if (arguments_.report.empty()) return;
    run.parameters_sha256 = engine_->ParametersSha256();
    std::vector<std::int64_t> mine;
    const MemoryReport memory = engine_->memory();
    for (const auto& [tag, bytes] : memory.peak) mine.push_back(bytes);
    mine.push_back(memory::PeakResidentBytes());
    mine.push_back(load_raised_bytes_);
    const auto all = FromAllRanks<std::int64_t>(ranks_->comm(), std::span<const std::int64_t>(mine),
                                                Item::kReport);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      std::vector<std::int64_t> by_rank;
      for (std::size_t at = i; at < all.size(); at += mine.size()) by_rank.push_back(all[at]);
      if (i < memory.peak.size()) {
        run.peak_bytes.emplace_back(memory.peak[i].first, std::move(by_rank));
      } else if (i == memory.peak.size()) {
        run.rss_peak_bytes = std::move(by_rank);
      } else {
        run.load_rss_raised_bytes = std::move(by_rank);
      }
    }
    if (!is_first()) return;
    WriteWhole(fs_, arguments_.report, ReportJson(run));
    fmt::print("report written to {}\n", arguments_.report);
  }

  bool is_first() const { return ranks_->rank() == 0; }

  const TrainArguments& arguments_;
  const CommandLine& command_line_;
  files::PosixFileSystem fs_;
  std::shared_ptr<Ranks> ranks_;
  std::unique_ptr<TrainSetup> setup_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MetricsFile> metrics_;
  std::vector<std::string> resume_lines_, choice_lines_;
  std::int64_t load_raised_bytes_ = 0;
};

}  // namespace

int RunTrain(const TrainArguments& arguments, const CommandLine& command_line) {
  if (const auto code = LaunchIfAsked(arguments.ranks, arguments.threads, command_line)) {
    return *code;
  }
  SetThreads(arguments.threads);
  CatchInterrupts();
  return Training(arguments, command_line).Run();
}

}  // namespace ullage::cli
