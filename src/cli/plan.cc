// `ullage plan`: the engine itself on tensors without memory, for one step of a rank that may be
// one of many, and what could be changed in the job.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bytes.h"
#include "cli/choice.h"
#include "cli/commands.h"
#include "cli/data_choice.h"
#include "cli/plan_lengths.h"
#include "cli/setup.h"
#include "files/file_system.h"
#include "planner/levers.h"
#include "planner/micro_batch.h"
#include "ullage/engine.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

constexpr std::int64_t kUsualRecord = 128;  // tokens of a record to classify

std::string ConfigPath(const std::string& model) {
  files::PosixFileSystem fs;
  const auto status = fs.Stat(model);
  return status && status->is_directory ? model + "/config.json" : model;
}

Settings SettingsFor(const PlanArguments& arguments) {
  Settings settings = Settings::FromFile(arguments.config);
  if (arguments.micro_batch > 0) {
    settings.train_micro_batch_size_per_gpu = arguments.micro_batch;
    settings.train_batch_size.reset();
    settings.set_by["train_micro_batch_size_per_gpu"] = "command line";
  }
  ResolveBatches(settings, arguments.ranks);
  return settings;
}

// What the device's memory is, of a known device or as it was given.
DeviceModel DeviceOf(const PlanArguments& arguments) {
  if (arguments.device.empty()) return FindDevice("h200");
  if (std::isdigit(static_cast<unsigned char>(arguments.device.front())) == 0) {
    return FindDevice(arguments.device);
  }
  DeviceModel device = FindDevice("h200");
  device.name = arguments.device;
  device.memory = ParseBytes(arguments.device);
  device.is_measured = false;
  return device;
}

std::string Gain(std::int64_t before, std::int64_t after) {
  if (after == before) return "0 bytes";
  return fmt::format("{}{}", after < before ? "-" : "+", FormatBytes(std::abs(after - before)));
}

// One column for each phase, one row for each tag.
void PrintPhases(const MemoryPrediction& prediction) {
  fmt::print("{:<14}", "");
  for (const PhaseBytes& phase : prediction.phases) fmt::print("{:>14}", phase.phase);
  std::vector<std::string> tags;
  for (const PhaseBytes& phase : prediction.phases) {
    for (const auto& [tag, bytes] : phase.by_tag) {
      if (std::ranges::find(tags, tag) == tags.end()) tags.push_back(tag);
    }
  }
  for (const std::string& tag : tags) {
    fmt::print("\n{:<14}", tag);
    for (const PhaseBytes& phase : prediction.phases) {
      const auto found =
          std::ranges::find(phase.by_tag, tag, &std::pair<std::string, std::int64_t>::first);
      fmt::print("{:>14}", found == phase.by_tag.end() ? "" : FormatBytes(found->second));
    }
  }
  fmt::print("\n{:<14}", "together");
  for (const PhaseBytes& phase : prediction.phases) {
    fmt::print("{:>14}", FormatBytes(phase.total));
  }
  fmt::print("\n");
}

std::string Place(const std::string& operation, const std::string& parameter) {
  if (operation.empty()) return "the engine";
  return parameter.empty() ? operation : fmt::format("{} after {}", operation, parameter);
}

void PrintTime(const planner::Job& job, const StepTime& time) {
  const BatchSizes sizes = job.settings.ResolveBatchSizes(job.ranks);
  const double tokens = static_cast<double>(sizes.train_batch * job.sequence);
  fmt::print(
      "a step: about {:.3g} s (forward {:.3g}, backward {:.3g}, update {:.3g}), most of it for {}; "
      "{:.0f} tokens a second{}\n",
      time.total(), time.forward, time.backward, time.step, time.bound, tokens / time.total(),
      job.device.is_measured ? "" : " (by its data sheet and the H200's measured rates)");
}

void PrintVerdict(const PlanArguments& arguments, const planner::Job& job,
                  const MemoryPrediction& prediction) {
  const DeviceModel& device = job.device;
  const PhaseBytes& highest = *std::ranges::max_element(prediction.phases, {}, &PhaseBytes::total);
  fmt::print("most in {}, at {}\n", highest.phase, Place(highest.operation, highest.parameter));
  if (job.cuda) {
    fmt::print("torch's allocator: {} given out, {} reserved; outside it {}{}\n",
               FormatBytes(prediction.allocated), FormatBytes(prediction.reserved),
               FormatBytes(prediction.outside),
               device.is_measured ? "" : " (assumed, as on an H200: not measured there)");
  }
  if (prediction.time) PrintTime(job, *prediction.time);
  if (prediction.host > 0) fmt::print("host: {}\n", FormatBytes(prediction.host));
  if (prediction.disk > 0) fmt::print("disk: {}\n", FormatBytes(prediction.disk));
  if (arguments.device.empty()) return;
  const std::int64_t room = device.memory - prediction.device();
  if (room >= 0) {
    fmt::print("fits on {} ({}): {} to spare\n", device.name, FormatBytes(device.memory),
               FormatBytes(room));
  } else {
    fmt::print("does not fit on {} ({}): over by {} in {}, at {}\n", device.name,
               FormatBytes(device.memory), FormatBytes(-room), highest.phase,
               Place(highest.operation, highest.parameter));
  }
}

void PrintLargest(const MemoryPrediction& prediction) {
  constexpr std::size_t kTold = 6;
  fmt::print("largest then, of operators:\n");
  for (std::size_t i = 0; i < std::min(kTold, prediction.largest.size()); ++i) {
    const HeldTensors& held = prediction.largest[i];
    fmt::print("{:>14}  {} {} of {}\n", FormatBytes(held.bytes), held.count, held.use,
               Place(held.operation, held.parameter));
  }
}

void PrintLevers(const DeviceModel& device, bool with_device, const MemoryPrediction& before,
                 const std::vector<planner::Lever>& levers) {
  if (!levers.empty()) fmt::print("what could be changed:\n");
  for (const planner::Lever& lever : levers) {
    fmt::print("  {}\n", lever.change);
    if (!lever.prediction) {
      fmt::print("      no plan: {}\n", lever.refused);
      continue;
    }
    const MemoryPrediction& after = *lever.prediction;
    std::string verdict;
    if (with_device) verdict = after.device() <= device.memory ? ", fits" : ", does not fit";
    fmt::print("      {} on the device{}", Gain(before.device(), after.device()), verdict);
    if (after.host != before.host) fmt::print("; {} on the host", Gain(before.host, after.host));
    if (before.time && after.time) {
      fmt::print("; a step takes {:.2f} times as long", after.time->total() / before.time->total());
    }
    fmt::print("; {}\n", lever.cost);
  }
}

struct Told {
  MemoryPrediction prediction;
  std::vector<planner::Lever> levers;
  std::vector<std::string> choice, start_lines;
  std::string plan_text, plan_json;
  std::vector<std::pair<std::string, std::int64_t>> peak;  // of each tag by itself, on all tiers
  std::int64_t micro_batch = 0;
  std::optional<FileLengths> lengths;
  std::vector<std::pair<std::int64_t, std::int64_t>> largest;  // tokens, records that fit
};

// As a training would.
void ChooseWhatIsOpen(planner::Job& job, Told& told) {
  if (!job.cuda || !job.settings.ullage.device_memory || job.operator_bytes > 0) return;
  planner::Freedom freedom = planner::LeftOpen(job.settings);
  freedom.stage &= job.ranks > 1;
  if (!freedom.micro_batch && !freedom.recompute && !freedom.stage) return;
  const planner::Found found =
      planner::FindFastest(job, freedom, *job.settings.ullage.device_memory);
  if (!found.best) return;  // the error of what was asked for says why
  Adopt(found.best->job, job.settings);
  told.choice = ChoiceLines(found, *job.settings.ullage.device_memory);
}

void PrintLengths(const Told& told, const std::string& device) {
  if (!told.lengths) return;
  const FileLengths& lengths = *told.lengths;
  fmt::print(
      "{} records: {} tokens at most, 95 % within {}, median {}, mean {:.1f}; {:.0f} % of "
      "batches of {} would be padding if records were mixed\n",
      lengths.records, lengths.longest, lengths.most, lengths.median, lengths.mean,
      100 * lengths.padding, told.micro_batch);
  for (const auto& [tokens, records] : told.largest) {
    fmt::print("{} records of {} tokens fit into a forward on {}\n", records, tokens, device);
  }
}

void PrintText(const PlanArguments& arguments, const planner::Job& job, const Told& told) {
  for (const std::string& line : told.choice) fmt::print("{}\n", line);
  for (const std::string& line : told.start_lines) fmt::print("{}\n", line);
  fmt::print("{}", told.plan_text);
  fmt::print("at most, in a dry run of rank {}, {} records of {} tokens in a forward:\n",
             arguments.rank, told.micro_batch, job.sequence);
  PrintPhases(told.prediction);
  PrintVerdict(arguments, job, told.prediction);
  PrintLargest(told.prediction);
  PrintLengths(told, job.device.name);
  PrintLevers(job.device, !arguments.device.empty(), told.prediction, told.levers);
}

using Json = nlohmann::ordered_json;

Json ToJson(const MemoryPrediction& prediction) {
  Json phases = Json::array();
  for (const PhaseBytes& phase : prediction.phases) {
    Json tags = Json::object();
    for (const auto& [tag, bytes] : phase.by_tag) tags[tag] = bytes;
    phases.push_back({{"phase", phase.phase},
                      {"bytes", phase.total},
                      {"by_tag", std::move(tags)},
                      {"operation", phase.operation},
                      {"parameter", phase.parameter}});
  }
  Json largest = Json::array();
  for (const HeldTensors& held : prediction.largest) {
    largest.push_back({{"bytes", held.bytes},
                       {"count", held.count},
                       {"use", held.use},
                       {"operation", held.operation},
                       {"parameter", held.parameter}});
  }
  Json json = {{"peak", prediction.peak},         {"allocated", prediction.allocated},
               {"reserved", prediction.reserved}, {"outside", prediction.outside},
               {"device", prediction.device()},   {"host", prediction.host},
               {"disk", prediction.disk},         {"phases", std::move(phases)},
               {"largest", std::move(largest)}};
  if (prediction.time) {
    json["seconds"] = {{"step", prediction.time->total()},
                       {"forward", prediction.time->forward},
                       {"backward", prediction.time->backward},
                       {"update", prediction.time->step},
                       {"bound", prediction.time->bound}};
  }
  return json;
}

void PrintJson(const PlanArguments& arguments, const planner::Job& job, const Told& told) {
  Json peak = Json::object();
  for (const auto& [tag, bytes] : told.peak) peak[tag] = bytes;
  Json json = {{"rank", arguments.rank},
               {"micro_batch", told.micro_batch},
               {"sequence", job.sequence},
               {"peak_bytes", std::move(peak)},
               {"plan", Json::parse(told.plan_json)},
               {"chosen", told.choice},
               {"prediction", ToJson(told.prediction)}};
  if (!arguments.device.empty()) {
    json["device"] = {{"name", job.device.name},
                      {"bytes", job.device.memory},
                      {"fits", told.prediction.device() <= job.device.memory}};
  }
  if (told.lengths) {
    const FileLengths& lengths = *told.lengths;
    json["lengths"] = {{"records", lengths.records}, {"longest", lengths.longest},
                       {"most", lengths.most},       {"median", lengths.median},
                       {"mean", lengths.mean},       {"padding", lengths.padding}};
    json["largest_micro_batch"] = Json::array();
    for (const auto& [tokens, records] : told.largest) {
      json["largest_micro_batch"].push_back({{"tokens", tokens}, {"records", records}});
    }
  }
  Json levers = Json::array();
  for (const planner::Lever& lever : told.levers) {
    Json entry = {{"change", lever.change}, {"cost", lever.cost}};
    if (lever.prediction) {
      entry["prediction"] = ToJson(*lever.prediction);
    } else {
      entry["refused"] = lever.refused;
    }
    levers.push_back(std::move(entry));
  }
  json["levers"] = std::move(levers);
  fmt::print("{}\n", json.dump(1));
}

}  // namespace

int RunPlan(const PlanArguments& arguments) {
  if (arguments.rank >= arguments.ranks) {
    throw ConfigError(fmt::format("--rank {} of {} ranks", arguments.rank, arguments.ranks),
                      "ranks count from 0");
  }
  planner::Job job;
  job.model = ConfigPath(arguments.model);
  job.settings = SettingsFor(arguments);
  job.rank = arguments.rank;
  job.ranks = arguments.ranks;
  job.cuda = arguments.cuda || !arguments.device.empty();
  job.device = DeviceOf(arguments);
  if (!arguments.operator_bytes.empty()) job.operator_bytes = ParseBytes(arguments.operator_bytes);
  const auto model = planner::MakeModel(job);
  if (arguments.sequence > model->max_positions()) {
    throw ConfigError(fmt::format("--seq {}: the model has {} positions", arguments.sequence,
                                  model->max_positions()),
                      "plan for at most as many");
  }
  const std::int64_t usual = model->task() == models::Task::kClassification
                                 ? std::min(kUsualRecord, model->max_positions())
                                 : UsualSequenceLength(*model);
  job.sequence = arguments.sequence > 0 ? arguments.sequence : usual;

  Told told;
  if (!arguments.train.empty()) {
    told.lengths =
        LengthsOf(arguments.train, *model, job.settings.ResolveBatchSizes(job.ranks).micro_batch);
    job.sequence = told.lengths->longest;
    if (!arguments.device.empty()) {
      for (const std::int64_t tokens :
           {told.lengths->longest, told.lengths->most, told.lengths->median}) {
        if (!told.largest.empty() && told.largest.back().first == tokens) continue;
        planner::Job of_length = job;
        of_length.sequence = tokens;
        told.largest.emplace_back(tokens, planner::LargestMicroBatch(of_length, job.device.memory));
      }
    }
  }
  ChooseWhatIsOpen(job, told);
  told.prediction = planner::Predict(job, [&](const Engine& engine) {
    told.start_lines = engine.StartLines();
    told.plan_text = engine.PlanText();
    told.plan_json = engine.PlanJson();
    told.peak = engine.memory().peak;
    told.micro_batch = engine.batch_sizes().micro_batch;
  });
  told.levers = planner::Levers(job, arguments.device.empty() ? 0 : job.device.memory);
  arguments.json ? PrintJson(arguments, job, told) : PrintText(arguments, job, told);
  return 0;
}

}  // namespace ullage::cli
