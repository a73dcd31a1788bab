#include "cli/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "cli/data_choice.h"
#include "engine/device_choice.h"
#include "torchx/device_facts.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

std::string Describe(const planner::Candidate& candidate) {
  const planner::Job& job = candidate.job;
  const BatchSizes sizes = job.settings.ResolveBatchSizes(job.ranks);
  std::string text =
      fmt::format("{} records in a forward x {}", sizes.micro_batch, sizes.accumulation_steps);
  if (job.ranks > 1) text += fmt::format(", stage {}", job.settings.zero.stage);
  if (job.settings.recompute) text += ", blocks recomputed";
  return text;
}

}  // namespace

std::int64_t LongestOf(const TrainArguments& arguments, const data::TrainingData& data,
                       const models::Model& model) {
  const std::vector<std::int64_t> lengths = data::Lengths(data);
  const std::int64_t multiple = std::max<std::int64_t>(1, arguments.pad_to_multiple_of);
  const std::int64_t longest = *std::ranges::max_element(lengths);
  return std::min((longest + multiple - 1) / multiple * multiple, model.max_positions());
}

planner::Job JobOf(const TrainArguments& arguments, const Settings& settings, const Ranks& ranks,
                   const LongestRecords& longest, int num_labels) {
  engine::UseDeviceOf(ranks);
  const torchx::DeviceFacts facts = torchx::DescribeCurrentCuda();
  planner::Job job;
  job.model = arguments.model + "/config.json";
  job.settings = settings;
  job.rank = ranks.rank();
  job.ranks = ranks.world_size();
  job.sequence = longest.train;
  job.num_labels = num_labels;
  job.eval_records = arguments.eval_batch;
  job.eval_sequence = longest.eval;
  job.cuda = true;
  job.device = ModelOfDevice(facts.name, facts.total, facts.multiprocessors);
  return job;
}

std::vector<std::string> ChooseWithinBudget(files::FileSystem& fs, const TrainArguments& arguments,
                                            const Ranks& ranks, Settings& settings) {
  if (!arguments.cuda || !settings.ullage.device_memory) return {};
  planner::Freedom freedom = planner::LeftOpen(settings);
  if (ranks.world_size() == 1) freedom.stage = false;
  if (!freedom.micro_batch && !freedom.recompute && !freedom.stage) return {};
  files::TokenFile file = files::TokenFile::Open(fs, arguments.train);
  const auto model = ModelForFile(arguments.model, file, arguments.num_labels);
  const DataWords words{arguments.max_length, arguments.sequence_length,
                        arguments.pad_to_multiple_of};
  LongestRecords longest;
  longest.train =
      LongestOf(arguments, *DataFor(std::move(file), *model, words, std::nullopt), *model);
  if (!arguments.eval.empty()) {
    files::TokenFile eval = files::TokenFile::Open(fs, arguments.eval);
    longest.eval =
        LongestOf(arguments, *DataFor(std::move(eval), *model, words, std::nullopt), *model);
  }
  planner::Job job = JobOf(arguments, settings, ranks, longest, model->num_labels());
  job.rank = 0;
  const planner::Found found = planner::FindFastest(job, freedom, *settings.ullage.device_memory);
  if (!found.best) {
    throw OutOfMemoryError(
        found.refused.empty() ? fmt::format("nothing fits within ullage.device_memory {}",
                                            FormatBytes(*settings.ullage.device_memory))
                              : found.refused,
        "raise ullage.device_memory, use shorter records (--max-length, --sequence-length), or "
        "more ranks");
  }
  Adopt(found.best->job, settings);
  return ChoiceLines(found, *settings.ullage.device_memory);
}

void Adopt(const planner::Job& chosen, Settings& settings) {
  const BatchSizes before = settings.ResolveBatchSizes(chosen.ranks);
  const BatchSizes after = chosen.settings.ResolveBatchSizes(chosen.ranks);
  if (before.micro_batch != after.micro_batch) {
    settings.train_batch_size = after.train_batch;
    settings.train_micro_batch_size_per_gpu = after.micro_batch;
    settings.gradient_accumulation_steps = after.accumulation_steps;
    settings.set_by["train_micro_batch_size_per_gpu"] = "planner";
    settings.set_by["gradient_accumulation_steps"] = "planner";
  }
  if (settings.recompute != chosen.settings.recompute) {
    settings.recompute = chosen.settings.recompute;
    settings.set_by["ullage.recompute"] = "planner";
  }
  if (settings.zero.stage != chosen.settings.zero.stage) {
    settings.zero.stage = chosen.settings.zero.stage;
    settings.set_by["zero_optimization.stage"] = "planner";
  }
}

std::vector<std::string> ChoiceLines(const planner::Found& found, std::int64_t budget) {
  constexpr std::size_t kTold = 3;
  const planner::Candidate& best = *found.best;
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("chosen, as the fastest of {} ways that fits within {}: {}; a step is expected "
                  "to take {:.3g} "
                  "s, most of it for {}",
                  found.considered.size(), FormatBytes(budget), Describe(best),
                  best.prediction.time->total(), best.prediction.time->bound));
  std::vector<std::string> faster;
  for (const planner::Candidate& candidate : found.considered) {
    if (faster.size() == kTold || Describe(candidate) == Describe(best)) break;
    faster.push_back(fmt::format("{} (up to {:.3g} s, {} to have all on the device)",
                                 Describe(candidate), candidate.prediction.time->total(),
                                 FormatBytes(candidate.prediction.device())));
  }
  if (!faster.empty()) {
    lines.push_back(fmt::format("faster with more memory: {}", fmt::join(faster, "; ")));
  }
  return lines;
}

}  // namespace ullage::cli
