// The loop of a training: steps, evaluations, progress, until the last step or a signal.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cli/arguments.h"
#include "cli/evaluation.h"
#include "cli/output_directory.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/setup.h"
#include "data/loader.h"
#include "ullage/engine.h"
#include "ullage/error.h"

namespace ullage::cli {

class TrainingLoop {
 public:
  // `metrics` is null on all ranks but the first. `keep_best` is called on every rank when an
  // evaluation was better than all before.
  TrainingLoop(const TrainArguments& arguments, TrainSetup& setup, Engine& engine,
               MetricsFile* metrics, std::function<void(const EvaluationResult&)> keep_best);

  // Collective. The numbers of all but the end: peaks and hash are the caller's.
  RunNumbers Run();

 private:
  // Of one micro-batch, for all ranks to see.
  struct Share {
    double loss = 0;  // sum over its labels
    std::int64_t tokens = 0;
    std::int64_t valid_labels = 0;
  };
  // Of one step on one rank.
  struct Status {
    std::int64_t rss_bytes = 0;
    int signal = 0;
  };

  StepNumbers Step(std::int64_t number);
  Share MicroBatch(const data::Batch& batch, std::size_t micro_step);
  void Exchange(std::span<const Share> mine, StepNumbers& step);
  bool EvaluationIsDue(std::int64_t step) const;
  void EvaluateNow(std::int64_t step);
  bool SaveIsDue(std::int64_t step) const;
  bool IsResumedFromElsewhere() const;
  void SaveNow(std::int64_t step);
  void FinishSave();
  void SaveFailed(std::int64_t step, const Error& error);
  void Print(const StepNumbers& step);
  data::LoaderOptions loader_options() const;
  comm::Comm& comm() const { return engine_.ranks().comm(); }
  bool is_first() const { return engine_.ranks().rank() == 0; }

  const TrainArguments& arguments_;
  TrainSetup& setup_;
  Engine& engine_;
  MetricsFile* const metrics_;
  const std::function<void(const EvaluationResult&)> keep_best_;
  const c10::Device device_;
  data::Loader loader_;
  Progress progress_;
  PhaseTimes times_;
  RunNumbers run_;
  std::vector<std::pair<at::Tensor, std::size_t>> losses_;  // of the micro-batches of this step
  // Accuracy, or the loss with its sign turned: of the best evaluation so far.
  double best_score_ = -std::numeric_limits<double>::infinity();
  int signal_ = 0;  // as all ranks agreed
  std::int64_t rss_bytes_ = 0;
  std::int64_t saving_step_ = 0;  // whose checkpoint is being written; 0: none
};

}  // namespace ullage::cli
