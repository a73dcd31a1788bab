#include "cli/training_loop.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <stdio.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "cli/agreement.h"
#include "cli/device_batch.h"
#include "cli/interrupt.h"
#include "cli/output_directory.h"
#include "cli/run_state.h"
#include "files/file_system.h"
#include "memory/process.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the time of its life to `ms`.
class Stopwatch {
 public:
  explicit Stopwatch(double& ms) : ms_(ms), start_(Clock::now()) {}
  ~Stopwatch() { ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& ms_;
  const Clock::time_point start_;
};

}  // namespace

TrainingLoop::TrainingLoop(const TrainArguments& arguments, TrainSetup& setup, Engine& engine,
                           MetricsFile* metrics,
                           std::function<void(const EvaluationResult&)> keep_best)
    : arguments_(arguments),
      setup_(setup),
      engine_(engine),
      metrics_(metrics),
      keep_best_(std::move(keep_best)),
      device_(DeviceFor(arguments.cuda)),
      loader_(*setup.train, *setup.sampler, loader_options(),
              setup.resume ? setup.resume->state.position : data::Position{}),
      progress_(setup.total_steps, setup.settings.steps_per_print) {
  if (!setup.resume) return;
  run_.resumed_at = setup.resume->steps;
  best_score_ = setup.resume->state.best_score.value_or(best_score_);
}

data::LoaderOptions TrainingLoop::loader_options() const {
  data::LoaderOptions options;
  options.rank = engine_.ranks().rank();
  options.world_size = engine_.ranks().world_size();
  options.padding = {std::max<std::int64_t>(1, arguments_.pad_to_multiple_of),
                     setup_.model->max_positions()};
  return options;
}

RunNumbers TrainingLoop::Run() {
  setup_.model->module().train();
  std::int64_t tokens = 0;
  double ms = 0;
  for (std::int64_t number = run_.resumed_at + 1; number <= setup_.total_steps && signal_ == 0;
       ++number) {
    const StepNumbers step = Step(number);
    tokens += step.tokens;
    ms += step.ms;
    if (metrics_ != nullptr) metrics_->Add(StepJson(step));
    run_.steps.push_back(step);
    Print(step);
    if (signal_ == 0 && EvaluationIsDue(number)) EvaluateNow(number);
    if (SaveIsDue(number)) SaveNow(number);
  }
  // Nothing was left to do: what was loaded stands in this run's own folder all the same.
  if (run_.steps.empty() && arguments_.save_every > 0 && IsResumedFromElsewhere()) {
    SaveNow(run_.resumed_at);
  }
  {
    const Stopwatch saving(run_.last_save_ms);
    FinishSave();
  }
  run_.save_ms += engine_.statistics().save_wait_ms;
  const std::int64_t padding[] = {loader_.real_tokens(), loader_.padded_tokens()};
  const auto all =
      FromAllRanks<std::int64_t>(comm(), std::span<const std::int64_t>(padding), Item::kReport);
  std::int64_t real = 0, padded = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    real += all[i];
    padded += all[i + 1];
  }
  run_.padding_share = data::PaddingShare(real, padded);
  run_.tokens_per_s = ms > 0 ? static_cast<double>(tokens) * 1000 / ms : 0;
  run_.skipped_steps = engine_.skipped_steps();
  run_.world_size = engine_.ranks().world_size();
  run_.is_language_model = setup_.model->task() == models::Task::kCausalLanguage;
  run_.stage = setup_.settings.zero.stage;
  run_.interrupted_by = signal_;
  return std::move(run_);
}

StepNumbers TrainingLoop::Step(std::int64_t number) {
  StepNumbers step;
  step.step = number;
  step.epoch = static_cast<double>(number) / static_cast<double>(setup_.steps_per_epoch);
  times_ = {};
  {
    const Stopwatch whole(step.ms);
    std::vector<Share> shares;
    for (std::int64_t m = 0; m < setup_.batch_sizes.accumulation_steps; ++m) {
      data::Batch batch;
      {
        const Stopwatch waiting(times_.data);
        batch = loader_.Next();
      }
      shares.push_back(MicroBatch(batch, shares.size()));
    }
    const Stopwatch updating(times_.step);
    const StepResult result = engine_.Step();
    step.lr = result.lr;
    step.grad_norm = result.grad_norm;
    step.clip_coef = result.clip_coef;
    step.loss_scale = result.loss_scale;
    step.applied = result.applied;
    step.overflowed = result.overflowed;
    // Only now: reading a loss waits for the device, which has work until the step's norm anyway.
    for (const auto& [loss, micro_step] : losses_) shares[micro_step].loss = loss.item<double>();
    losses_.clear();
    Exchange(shares, step);
  }
  progress_.Add(step, times_);
  return step;
}

// The engine takes the mean over ranks and micro-steps. With the factor here every label of the
// step weighs the same, in whichever micro-batch it is.
TrainingLoop::Share TrainingLoop::MicroBatch(const data::Batch& batch, std::size_t micro_step) {
  const Share share{0, batch.real_tokens, batch.step_valid_labels};
  const double forward_before = times_.forward;
  double both = 0;
  {
    const Stopwatch watch(both);
    if (batch.records == 0 || batch.step_valid_labels == 0) {
      engine_.Backward({});
    } else {
      const double micro_batches =
          static_cast<double>(setup_.batch_sizes.accumulation_steps) * engine_.ranks().world_size();
      const models::Batch on_device = OnDevice(batch, device_);
      // An input and not a number, which would be a part of what is recorded.
      const at::Tensor factor = at::scalar_tensor(
          micro_batches / static_cast<double>(batch.step_valid_labels), at::kFloat);
      const auto values = engine_.ForwardBackward(
          {on_device.input_ids, on_device.attention_mask, on_device.labels, on_device.position_ids,
           on_device.document_ids, factor},
          [this](const std::vector<at::Tensor>& in) {
            const Stopwatch forward(times_.forward);
            const at::Tensor loss = setup_.model->Loss({in[0], in[1], in[2], in[3], in[4]}).loss;
            return std::vector<at::Tensor>{at::mul(loss, in[5]), loss};
          });
      losses_.push_back({values[1], micro_step});
    }
  }
  times_.backward += both - (times_.forward - forward_before);
  return share;
}

void TrainingLoop::Exchange(std::span<const Share> mine, StepNumbers& step) {
  const auto shares = FromAllRanks<Share>(comm(), mine, Item::kStep);
  // In the order (micro-step, rank): the sum does not depend on how the two divide a step.
  double loss = 0;
  for (std::size_t m = 0; m < mine.size(); ++m) {
    for (std::size_t i = m; i < shares.size(); i += mine.size()) {
      loss += shares[i].loss;
      step.tokens += shares[i].tokens;
    }
  }
  const std::int64_t labels = mine.front().valid_labels;
  step.loss = labels > 0 ? loss / static_cast<double>(labels) : 0;

  // All ranks end at the same step, whichever of them a signal reached first.
  const bool needs_rss = progress_.IsDue(step.step);
  const Status status{needs_rss ? memory::ResidentBytes() : 0, InterruptSignal()};
  rss_bytes_ = 0;
  for (const Status& theirs : FromAllRanks(comm(), status, Item::kStep)) {
    rss_bytes_ = std::max(rss_bytes_, theirs.rss_bytes);
    if (signal_ == 0) signal_ = theirs.signal;
  }
}

bool TrainingLoop::EvaluationIsDue(std::int64_t step) const {
  if (!setup_.eval) return false;
  const std::int64_t every =
      arguments_.eval_every > 0 ? arguments_.eval_every : setup_.steps_per_epoch;
  return step % every == 0 || step == setup_.total_steps;
}

void TrainingLoop::EvaluateNow(std::int64_t step) {
  const std::int64_t batch =
      arguments_.eval_batch > 0 ? arguments_.eval_batch : setup_.batch_sizes.micro_batch;
  const EvaluationResult result =
      Evaluate(*setup_.model, *setup_.eval, batch, loader_options(), comm(), device_);
  run_.evaluation = result;
  if (metrics_ != nullptr) metrics_->Add(EvaluationJson(step, result));
  const double score = result.accuracy.value_or(-result.loss);
  const bool better = score > best_score_;
  best_score_ = std::max(best_score_, score);
  const bool keep = better && arguments_.eval_every > 0;
  if (is_first()) {
    fmt::print("step {}/{}  eval {}, in {}{}\n", step, setup_.total_steps, Describe(result),
               FormatDuration(result.seconds), keep ? "  (best so far, kept)" : "");
  }
  if (keep) keep_best_(result);
}

// An interrupted run goes on exactly where it was asked to end.
bool TrainingLoop::SaveIsDue(std::int64_t step) const {
  if (arguments_.save_every == 0) return false;
  return step % arguments_.save_every == 0 || step == setup_.total_steps || signal_ != 0;
}

bool TrainingLoop::IsResumedFromElsewhere() const {
  return setup_.resume &&
         files::ParentOf(setup_.resume->path) != arguments_.output + "/" + kCheckpoints;
}

void TrainingLoop::SaveNow(std::int64_t step) {
  RunState state;
  state.data = setup_.data_identity;
  state.position = loader_.position();
  state.num_labels = static_cast<int>(setup_.model->num_labels());
  if (std::isfinite(best_score_)) state.best_score = best_score_;
  SaveOptions options;
  options.client_state = ToJson(state);
  options.keep = arguments_.keep;
  options.background = true;
  options.buffer_bytes = arguments_.save_buffer;
  const Stopwatch saving(run_.save_ms);
  FinishSave();
  try {
    engine_.SaveCheckpoint(arguments_.output + "/" + kCheckpoints, options);
    saving_step_ = step;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    SaveFailed(step, error);
  }
}

void TrainingLoop::FinishSave() {
  if (saving_step_ == 0) return;
  const std::int64_t step = std::exchange(saving_step_, 0);
  try {
    engine_.FinishSaving();
    ++run_.saves;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    SaveFailed(step, error);
  }
}

// A run is not lost to a save: the older checkpoints are what they were.
void TrainingLoop::SaveFailed(std::int64_t step, const Error& error) {
  ++run_.failed_saves;
  if (!is_first()) return;
  Log(LogLevel::kError, "checkpoint",
      fmt::format("step {}: no checkpoint was written, training goes on: {}", step, error.what()));
}

void TrainingLoop::Print(const StepNumbers& step) {
  if (!is_first()) return;
  if (!step.applied) fmt::print("{}\n", SkippedLine(step));
  if (!progress_.IsDue(step.step)) return;
  const MemoryReport memory = engine_.memory();
  fmt::print("{}\n", progress_.Line(memory, rss_bytes_));
  if (setup_.settings.wall_clock_breakdown) fmt::print("{}\n", progress_.TimesLine());
  if (setup_.settings.memory_breakdown) fmt::print("{}\n", MemoryLine(memory));
  ::fflush(stdout);
}

}  // namespace ullage::cli
