// `--ranks N`: the program starts itself N times and looks after the copies.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ullage::cli {

struct LaunchOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> command;  // argv of every rank, its first word included
  int ranks = 1;
  int threads = 0;  // of each rank; 0: OMP_NUM_THREADS of the environment, else cores / ranks
  // What the other ranks get to end by themselves once one has failed.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
};

// Runs the ranks and waits for all of them. SIGINT and SIGTERM go on to them; a second one kills
// them. Returns 0, or the exit code of the rank that failed first (128 + signal when it was
// killed), which is named on stderr. Throws IoError when a rank cannot be started.
int LaunchRanks(const LaunchOptions& options);

// In a rank: to be called first. Lets it die with the process that started it.
void DieWithLauncher();

}  // namespace ullage::cli
