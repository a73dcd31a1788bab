#include "cli/report.h"

#include <nlohmann/json.hpp>

namespace ullage::cli {
namespace {

using Json = nlohmann::ordered_json;  // dumps inf and nan as null

Json OrNull(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

template <typename Member>
Json Column(const std::vector<StepNumbers>& steps, Member member) {
  Json column = Json::array();
  for (const StepNumbers& step : steps) column.push_back(step.*member);
  return column;
}

std::optional<double> Score(const RunNumbers& run) {
  if (!run.evaluation) return std::nullopt;
  return run.is_language_model ? run.evaluation->perplexity : run.evaluation->accuracy;
}

}  // namespace

std::string ReportJson(const RunNumbers& run) {
  Json peaks = Json::object();
  for (const auto& [tag, bytes] : run.peak_bytes) peaks[tag] = bytes;
  const Json report = {
      {"loss", Column(run.steps, &StepNumbers::loss)},
      {"grad_norm", Column(run.steps, &StepNumbers::grad_norm)},
      {"lr", Column(run.steps, &StepNumbers::lr)},
      {run.is_language_model ? "eval_perplexity" : "eval_accuracy", OrNull(Score(run))},
      {"eval_loss", run.evaluation ? Json(run.evaluation->loss) : Json()},
      {"tokens_per_s", run.tokens_per_s},
      {"padding_share", run.padding_share},
      {"skipped_steps", run.skipped_steps},
      {"peak_bytes", std::move(peaks)},
      {"rss_peak_bytes", run.rss_peak_bytes},
      {"load_rss_raised_bytes", run.load_rss_raised_bytes},
      {"parameters_sha256", run.parameters_sha256},
      {"steps", run.steps.size()},
      {"resumed_at", run.resumed_at},
      {"saves", run.saves},
      {"failed_saves", run.failed_saves},
      {"save_ms", run.save_ms},
      {"last_save_ms", run.last_save_ms},
      {"step_ms", Column(run.steps, &StepNumbers::ms)},
      {"world_size", run.world_size},
      {"stage", run.stage},
      {"interrupted_by_signal", run.interrupted_by == 0 ? Json() : Json(run.interrupted_by)}};
  return Dump(report, 1) + "\n";
}

std::string StepJson(const StepNumbers& step) {
  Json line = {{"step", step.step},           {"epoch", step.epoch},
               {"loss", step.loss},           {"lr", step.lr},
               {"grad_norm", step.grad_norm}, {"clip_coef", step.clip_coef},
               {"applied", step.applied},     {"loss_scale", step.loss_scale},
               {"tokens", step.tokens},       {"step_ms", step.ms}};
  if (!step.applied) line["overflowed"] = step.overflowed;
  return Dump(line);
}

std::string EvaluationJson(std::int64_t step, const EvaluationResult& result) {
  Json line = {{"step", step}, {"eval_loss", result.loss}};
  if (result.accuracy) line["eval_accuracy"] = *result.accuracy;
  if (result.perplexity) line["eval_perplexity"] = *result.perplexity;
  line[result.perplexity ? "eval_tokens" : "eval_records"] = result.labels;
  return Dump(line);
}

}  // namespace ullage::cli
