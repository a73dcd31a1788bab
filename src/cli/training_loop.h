// The loop of a training: steps, evaluations, progress, until the last step or a signal.
#pragma once

#include <functional>
#include <string>

#include "cli/arguments.h"
#include "cli/evaluation.h"
#include "cli/output_directory.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/setup.h"
#include "data/loader.h"
#include "ullage/engine.h"

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
  Share MicroBatch(const data::Batch& batch);
  void Exchange(std::span<const Share> mine, StepNumbers& step);
  bool EvaluationIsDue(std::int64_t step) const;
  void EvaluateNow(std::int64_t step);
  void Print(const StepNumbers& step);
  data::LoaderOptions loader_options() const;
  comm::Comm& comm() const { return engine_.ranks().comm(); }
  bool is_first() const { return engine_.ranks().rank() == 0; }

  const TrainArguments& arguments_;
  TrainSetup& setup_;
  Engine& engine_;
  MetricsFile* const metrics_;
  const std::function<void(const EvaluationResult&)> keep_best_;
  data::Loader loader_;
  Progress progress_;
  PhaseTimes times_;
  RunNumbers run_;
  double best_accuracy_ = -1;
  int signal_ = 0;  // as all ranks agreed
  std::int64_t rss_bytes_ = 0;
};

}  // namespace ullage::cli
