// A Comm in which something goes wrong at a chosen call, for tests of everything above it.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"

namespace ullage::comm {

enum class Fault {
  kThrow,  // CommError "injected fault ...", and the group is stopped
  kHang,   // sleeps for one and a half timeouts, then goes on as if nothing had been
  kSkip,   // returns without doing anything: this rank diverges from the others
  kDie,    // SIGKILL to this process
};

struct FaultPlan {
  struct Entry {
    enum class Call { kCollective, kRead, kSignal };
    Call call;   // kCollective: any call that all ranks make together, CreateWindow included;
                 // kRead: Read and Wait of any window; kSignal: Signal of any window
    int number;  // which one of that sort, from 0, counted over the life of the Comm
    Fault fault;
  };
  std::vector<Entry> entries;
};

// Takes over `comm`. A skipped CreateWindow throws, because there is no window to return.
std::unique_ptr<Comm> MakeFaultComm(std::unique_ptr<Comm> comm, FaultPlan plan);

}  // namespace ullage::comm
