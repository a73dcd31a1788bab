// A test body run once per rank: ranks as processes, or as threads.
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>

namespace testsupport {

struct Rank {
  int rank;
  int world_size;
  std::string store_path;  // for a c10d::FileStore shared by the ranks
};

using RankBody = std::function<void(const Rank&)>;

// Runs `body` once per rank, each in its own process, and fails the current test if any rank
// fails. The calling process re-executes its own binary with a filter that names the current
// test; the child finds its rank in the environment, runs `body` and returns. Unlike fork(),
// that is safe once threads or CUDA have started.
//
// A rank in `killed_ranks` must end by SIGKILL, which its body sends to itself; the others must
// still pass.
//
// A test body must therefore do nothing but call RunOnRanks: what stands around the call runs
// in the parent and in every child.
void RunOnRanks(int world_size, const RankBody& body,
                std::chrono::seconds timeout = std::chrono::seconds(60),
                const std::set<int>& killed_ranks = {});

// Runs `body` once per rank, each on its own thread of this process. Cheaper (a few ms a rank),
// for logic that keeps no process-wide or CUDA state.
void RunOnThreads(int world_size, const std::function<void(int rank)>& body);

}  // namespace testsupport
