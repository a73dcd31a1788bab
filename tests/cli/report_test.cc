#include "cli/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ullage::cli {
namespace {

using nlohmann::json;

StepNumbers Step(std::int64_t number, double loss) {
  StepNumbers step;
  step.step = number;
  step.loss = loss;
  step.lr = 0.5;
  step.grad_norm = 2;
  step.applied = true;
  step.ms = 10;
  return step;
}

TEST(Report, HasAListOfEachNumberOfTheStepsAndPeaksByTagAndRank) {
  RunNumbers run;
  run.steps = {Step(1, 0.75), Step(2, 0.5)};
  run.evaluation = EvaluationResult{.loss = 0.5, .accuracy = 0.875, .labels = 8};
  run.skipped_steps = 1;
  run.world_size = 2;
  run.stage = 3;
  run.peak_bytes = {{"weights", {100, 200}}, {"slots", {0, 0}}};
  run.rss_peak_bytes = {1000, 2000};
  run.parameters_sha256 = "abc";
  const json report = json::parse(ReportJson(run));
  EXPECT_EQ(report["loss"], json({0.75, 0.5}));
  EXPECT_EQ(report["grad_norm"], json({2, 2}));
  EXPECT_EQ(report["lr"], json({0.5, 0.5}));
  EXPECT_EQ(report["step_ms"], json({10, 10}));
  EXPECT_EQ(report["eval_accuracy"], 0.875);
  EXPECT_EQ(report["eval_loss"], 0.5);
  EXPECT_FALSE(report.contains("eval_perplexity"));
  EXPECT_EQ(report["skipped_steps"], 1);
  EXPECT_EQ(report["peak_bytes"]["weights"], json({100, 200}));
  EXPECT_EQ(report["rss_peak_bytes"], json({1000, 2000}));
  EXPECT_EQ(report["parameters_sha256"], "abc");
  EXPECT_EQ(report["steps"], 2);
  EXPECT_TRUE(report["interrupted_by_signal"].is_null());
}

TEST(Report, WritesInfinityAndNanAsNull) {
  RunNumbers run;
  run.steps = {Step(1, NAN)};
  run.steps[0].grad_norm = INFINITY;
  const json report = json::parse(ReportJson(run));
  EXPECT_TRUE(report["loss"][0].is_null());
  EXPECT_TRUE(report["grad_norm"][0].is_null());
}

TEST(Report, AStepIsOneLineAndNamesWhatOverflowed) {
  StepNumbers step = Step(3, 0.25);
  EXPECT_FALSE(json::parse(StepJson(step)).contains("overflowed"));
  step.applied = false;
  step.overflowed = "bert.weight";
  const std::string line = StepJson(step);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(json::parse(line)["overflowed"], "bert.weight");
  EXPECT_EQ(json::parse(line)["step"], 3);
}

TEST(Report, HasNullsWithoutAnEvaluation) {
  const json report = json::parse(ReportJson({}));
  EXPECT_TRUE(report["eval_loss"].is_null());
  EXPECT_TRUE(report["eval_accuracy"].is_null());
}

TEST(Report, ALanguageModelHasAPerplexityInPlaceOfAnAccuracy) {
  RunNumbers run;
  run.is_language_model = true;
  EXPECT_TRUE(json::parse(ReportJson(run))["eval_perplexity"].is_null());
  run.evaluation = EvaluationResult{.loss = 0.5, .perplexity = 1.75};
  const json report = json::parse(ReportJson(run));
  EXPECT_EQ(report["eval_loss"], 0.5);
  EXPECT_EQ(report["eval_perplexity"], 1.75);
  EXPECT_FALSE(report.contains("eval_accuracy"));
}

TEST(Report, AnEvaluationIsOneLine) {
  const json line = json::parse(EvaluationJson(20, {.loss = 0.5, .accuracy = 0.75, .labels = 8}));
  EXPECT_EQ(line,
            json({{"step", 20}, {"eval_loss", 0.5}, {"eval_accuracy", 0.75}, {"eval_records", 8}}));
  const json tokens =
      json::parse(EvaluationJson(20, {.loss = 0.5, .perplexity = 1.75, .labels = 300}));
  EXPECT_EQ(
      tokens,
      json({{"step", 20}, {"eval_loss", 0.5}, {"eval_perplexity", 1.75}, {"eval_tokens", 300}}));
}

}  // namespace
}  // namespace ullage::cli
