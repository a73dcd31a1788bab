// Which host and which process this is, and whether another process still lives.
#pragma once

#include <cstdint>
#include <string>

namespace ullage::comm {

// A process id and the moment it was given out: ids are used again, the pair is not.
struct ProcessId {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
};

ProcessId ThisProcess();

// False for a process that has ended, a zombie included. A process that may not be looked at
// counts as alive.
bool IsAlive(const ProcessId& process);

// Equal for two processes exactly when they can reach each other through /proc and the loopback
// device: the boot id and the pid and network namespaces. Two network namespaces on one machine
// are two hosts.
std::string MachineId();

// MachineId(), or ULLAGE_HOST_ID where that is set, so that tests can split one machine.
std::string HostId();

}  // namespace ullage::comm
