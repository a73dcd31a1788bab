#include "cli/commands.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <stdio.h>

#include <new>
#include <variant>

#include "cli/agreement.h"
#include "cli/launcher.h"
#include "comm/connect.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

int Run(const Command& command, const CommandLine& words) {
  if (const auto* train = std::get_if<TrainArguments>(&command)) return RunTrain(*train, words);
  if (const auto* plan = std::get_if<PlanArguments>(&command)) return RunPlan(*plan);
  if (const auto* evaluate = std::get_if<EvaluateArguments>(&command)) {
    return RunEvaluate(*evaluate, words);
  }
  if (const auto* inspect = std::get_if<InspectArguments>(&command)) return RunInspect(*inspect);
  if (const auto* doctor = std::get_if<DoctorArguments>(&command)) return RunDoctor(*doctor);
  return RunExport(std::get<ExportArguments>(command), words);
}

// One write, so that ranks do not interleave within a message.
int Fail(const std::string& text) {
  const std::string message = fmt::format("ullage: error: {}{}\n", WhoAmI(), text);
  ::fflush(stdout);
  ::fputs(message.c_str(), stderr);
  return 1;
}

}  // namespace

std::optional<int> LaunchIfAsked(int ranks, int threads, const CommandLine& command_line) {
  if (ranks == 0) return std::nullopt;
  const comm::Place place = comm::PlaceFromEnvironment();
  if (place.launcher != "none") {
    if (place.world_size == ranks) return std::nullopt;
    throw ConfigError(
        fmt::format("--ranks {}, but {} has started {}", ranks, place.launcher, place.world_size),
        "leave --ranks out when another program starts the ranks");
  }
  if (ranks == 1) return std::nullopt;
  LaunchOptions options;
  options.command = command_line;
  options.ranks = ranks;
  options.threads = threads;
  return LaunchRanks(options);
}

void SetThreads(int threads) {
  if (threads > 0) at::set_num_threads(threads);
}

std::string WhoAmI() {
  try {
    const comm::Place place = comm::PlaceFromEnvironment();
    if (place.world_size > 1) return fmt::format("rank {}: ", place.rank);
  } catch (const Error&) {
    // The environment is what the message is about.
  }
  return "";
}

int Main(int argc, char** argv) {
  DieWithLauncher();
  ::setvbuf(stdout, nullptr, _IOLBF, 0);  // progress shows in a file or a pipe as well
  const ParsedArguments parsed = ParseArguments(argc, argv);
  if (!parsed.command) return parsed.exit_code;
  try {
    return Run(*parsed.command, CommandLine(argv, argv + argc));
  } catch (const FailedElsewhere&) {
    return 1;
  } catch (const Error& error) {
    return Fail(error.what());
  } catch (const std::bad_alloc&) {
    return Fail("out of host memory\nhint: use more ranks, or a higher zero_optimization.stage");
  } catch (const std::exception& error) {
    const std::string text = error.what();  // torch adds a stack trace behind the first line
    return Fail(text.substr(0, text.find("\nException raised from")));
  }
}

}  // namespace ullage::cli
