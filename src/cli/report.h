// The numbers of a run, and their JSON for --report and metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ullage::cli {

// One optimizer step, as all ranks together made it.
struct StepNumbers {
  std::int64_t step = 0;  // from 1
  double epoch = 0;       // how often the data has been gone over, this step included
  double loss = 0;        // mean over the step's labels
  double lr = 0;
  double grad_norm = 0;
  double clip_coef = 1;
  double loss_scale = 1;
  bool applied = false;
  std::string overflowed;   // why not
  std::int64_t tokens = 0;  // without padding, over all ranks
  double ms = 0;
};

// Of one evaluation, over all ranks.
struct EvaluationResult {
  double loss = 0;  // mean over the labels that count
  // Classification: share of them whose class has the highest logit.
  std::optional<double> accuracy = std::nullopt;
  std::optional<double> perplexity = std::nullopt;  // language models: e to the loss
  std::int64_t labels = 0;  // that count: records, or tokens of a language model
  double seconds = 0;
};

struct RunNumbers {
  std::vector<StepNumbers> steps;
  bool is_language_model = false;  // has a perplexity where classifiers have an accuracy
  std::optional<EvaluationResult> evaluation;  // the last
  double tokens_per_s = 0;
  double padding_share = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t resumed_at = 0;  // steps that were done when this run began
  std::int64_t saves = 0;       // checkpoints written
  std::int64_t failed_saves = 0;
  double save_ms = 0;       // that training stood still for them
  double last_save_ms = 0;  // that the run waited for the last one, with nothing left to train
  int world_size = 1;
  int stage = 0;
  int interrupted_by = 0;  // signal, or 0
  // By tag, in the plan's order; one number for each rank.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> peak_bytes;
  std::vector<std::int64_t> rss_peak_bytes;  // by rank
  // By how much the most resident memory up to the end of loading was above that before it.
  std::vector<std::int64_t> load_rss_raised_bytes;
  std::string parameters_sha256;
};

// Ends in a newline. What is inf or nan becomes null, which is what JSON has for it.
std::string ReportJson(const RunNumbers& run);

// One line without a newline.
std::string StepJson(const StepNumbers& step);
std::string EvaluationJson(std::int64_t step, const EvaluationResult& result);

}  // namespace ullage::cli
