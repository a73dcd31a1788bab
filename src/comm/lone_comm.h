// The Comms of ranks without peers: one rank alone, and one of ranks that do not exist.
#pragma once

#include "comm/comm.h"

namespace ullage::comm {

// MakeSingleComm() with a timeout to report: nothing ever waits for it.
std::unique_ptr<Comm> MakeSingleComm(std::chrono::milliseconds timeout);

}  // namespace ullage::comm
