// How a process finds its ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace ullage::comm {

// Which rank this process is and where the ranks meet.
struct Place {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  // "file:PATH" or "tcp:HOST:PORT". Empty when world_size is 1.
  std::string store = "";
  // True when somebody else already serves the TCP store (torchrun's agent).
  bool store_is_served = false;
  // Keeps the keys of this run (and of this attempt, where a launcher restarts ranks) apart from
  // others in a store that outlives it.
  std::string store_prefix = "ullage";
  std::string launcher = "none";  // "ullage", "torchrun", "mpirun", "srun" or "none", for messages
};

// Reads the variables that `ullage train --ranks` (ULLAGE_RANK, ULLAGE_WORLD_SIZE,
// ULLAGE_LOCAL_RANK, ULLAGE_STORE), torchrun, mpirun and srun set; none of them: one rank. Throws
// ConfigError naming the variable that is missing or malformed.
Place PlaceFromEnvironment();

// Meets the other ranks: Gloo for collectives, shared memory within a host, TCP between hosts.
// A world of one rank needs no store. Throws CommError.
std::unique_ptr<Comm> Connect(const Place& place, std::chrono::milliseconds timeout);

// Ranks as threads of one process, for tests: call once, hand element i to thread i.
std::vector<std::unique_ptr<Comm>> ConnectThreads(int world_size,
                                                  std::chrono::milliseconds timeout);

}  // namespace ullage::comm
