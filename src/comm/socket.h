// TCP sockets in the few forms that this room needs: numeric addresses, deadlines everywhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/descriptor.h"

namespace ullage::comm {

using Clock = std::chrono::steady_clock;

struct Endpoint {
  std::string address;  // numeric, IPv4 or IPv6
  std::uint16_t port = 0;
};

std::string Describe(const Endpoint& endpoint);  // "10.0.0.2:4711", "[fd00::2]:4711"

// The address of this host on the way to `host` (a name or a number). Throws Problem when the
// name is unknown or there is no way.
std::string AddressTowards(const std::string& host, std::uint16_t port);

// The address of the first interface that is up and not the loopback, or of the interface named
// by GLOO_SOCKET_IFNAME. Throws Problem.
std::string OutsideAddress();

bool IsLoopback(const std::string& address);

// A non-blocking listener on a free port of `address`, which is written to *port. Throws Problem.
Descriptor Listen(const std::string& address, std::uint16_t* port);

// Called about every 20 ms of a wait; may throw to end it.
using Tick = std::function<void()>;

// A non-blocking connection. Throws Problem when refused or at the deadline.
Descriptor ConnectTo(const Endpoint& endpoint, Clock::time_point deadline, const Tick& tick);

// Prompt small messages, and a dead link noticed by the kernel after `timeout`.
void ConfigureConnection(int fd, std::chrono::milliseconds timeout);

// Waits until `fd` reports one of `events` (poll's), calling `tick`. False at the deadline.
bool WaitFor(int fd, short events, Clock::time_point deadline, const Tick& tick);

}  // namespace ullage::comm
