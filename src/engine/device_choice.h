// Which CUDA device a rank computes on.
#pragma once

#include <string>

#include "ullage/ranks.h"

namespace ullage::engine {

// Makes the device of this rank the calling thread's: ranks of one host take its devices in turn, a
// rank alone keeps the current one. Before anything touches a device, or a context is made on the
// first one for nothing. Says in a line when ranks share devices; else the line is empty.
std::string UseDeviceOf(const Ranks& ranks);

}  // namespace ullage::engine
