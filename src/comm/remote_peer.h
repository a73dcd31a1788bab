// Asking the service of one rank on another host.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/socket.h"
#include "comm/wire.h"

namespace ullage::comm {

class RemotePeer {
 public:
  // `self` is the asking rank, `rank` the one at `endpoint`. Connects at the first request.
  RemotePeer(int self, int rank, Endpoint endpoint, const Token& token,
             std::chrono::milliseconds timeout)
      : self_(self),
        rank_(rank),
        endpoint_(std::move(endpoint)),
        token_(token),
        timeout_(timeout) {}

  const Endpoint& endpoint() const { return endpoint_; }

  // Sends `request` (token and reader are filled in) and returns the reply; the bytes of a read
  // that reached its word are in `destination`. Thread-safe: each request under way has a
  // connection of its own, which later ones use again. Throws Problem when the peer cannot be
  // reached, closes the connection, breaks the protocol or has not answered at `deadline`, and
  // whatever `tick` throws.
  Reply Call(Request request, std::span<std::byte> destination, Clock::time_point deadline,
             const Tick& tick);

  // Where the rank is, without waiting for anything but the answer.
  Reply AskPosition(Clock::time_point deadline, const Tick& tick);

  // Tells the peer that the group is being stopped; true when the message went out.
  bool TellAbort(const std::string& reason, Clock::time_point deadline) noexcept;

 private:
  Descriptor Take(Clock::time_point deadline, const Tick& tick);
  void Send(int fd, const Request& request, Clock::time_point deadline, const Tick& tick);
  void Receive(int fd, std::span<std::byte> bytes, Clock::time_point deadline, const Tick& tick);
  std::string Who() const;

  const int self_;
  const int rank_;
  const Endpoint endpoint_;
  const Token token_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // guards idle_
  std::vector<Descriptor> idle_;
};

}  // namespace ullage::comm
