// The commands of the program. Each returns its exit code and throws what went wrong.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "ullage/ranks.h"

namespace ullage::cli {

using CommandLine = std::vector<std::string>;  // the words that the program was started with

int RunTrain(const TrainArguments& arguments, const CommandLine& command_line);
int RunPlan(const PlanArguments& arguments);
int RunEvaluate(const EvaluateArguments& arguments, const CommandLine& command_line);
int RunExport(const ExportArguments& arguments, const CommandLine& command_line);
int RunInspect(const InspectArguments& arguments);
int RunDoctor(const DoctorArguments& arguments);  // 1 where it finds a problem

// Starts the ranks that `--ranks` asks for and returns their exit code once they have ended. Absent
// when this process is itself a rank, or the only one. Throws ConfigError when another launcher
// has started another number of ranks.
std::optional<int> LaunchIfAsked(int ranks, int threads, const CommandLine& command_line);

// 0 leaves what OMP_NUM_THREADS says, or one for each core. Before torch computes anything.
void SetThreads(int threads);

// "rank 1: " in a world of several ranks, for messages.
std::string WhoAmI();

// Parses, runs, prints errors. What main returns.
int Main(int argc, char** argv);

}  // namespace ullage::cli
