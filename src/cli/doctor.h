// What `ullage doctor` looks at, and what it makes of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "torchx/device_facts.h"

namespace ullage::cli {

struct MachineFacts {
  std::string why_no_cuda;        // empty: there is a device
  bool has_nvidia = false;        // /dev/nvidia0
  std::string driver;             // "580.159.04"; empty: none
  int built_with_cuda = 0;        // torchx::BuiltWithCuda
  std::vector<int> capabilities;  // torchx::BuiltCapabilities
  std::vector<torchx::DeviceFacts> devices;
  std::string torch;            // version
  std::int64_t memory = 0;      // of the host
  std::int64_t available = 0;   // to this process
  std::string available_bound;  // what sets it
  std::int64_t memlock = -1;    // bytes; -1: no limit
  std::string huge_pages;       // "always", "madvise", "never"; empty: not told
  int memory_nodes = 1;
  int cores = 1;            // that this process may use
  std::string omp_threads;  // OMP_NUM_THREADS; empty: not set
  double copy_rate = 0;     // bytes per second read and written by one core
};

MachineFacts LookAround();

enum class Level : std::uint8_t { kFine, kNote, kProblem };

struct Finding {
  Level level = Level::kFine;
  std::string text;
  std::string remedy;  // empty: there is nothing to do
};

std::vector<Finding> Judge(const MachineFacts& facts);
// Of a ds_config.json: what is wrong with it, and what in it has no effect.
std::vector<Finding> JudgeConfig(const std::string& path);

// The oldest driver that runs programs of this CUDA (1000 * major + 10 * minor): NVIDIA's table of
// CUDA compatibility, for Linux.
std::string OldestDriver(int cuda);
// Whether version a ("525.60.13") is older than b.
bool IsOlder(const std::string& a, const std::string& b);

}  // namespace ullage::cli
