#include "comm/remote_peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "comm/problem.h"

namespace ullage::comm {
namespace {

constexpr const char* kLookThere =
    "see that rank's own output for the cause; if it runs, check the network between the hosts";

}  // namespace

std::string RemotePeer::Who() const {
  return fmt::format("rank {} ({})", rank_, Describe(endpoint_));
}

Reply RemotePeer::Call(Request request, std::span<std::byte> destination,
                       Clock::time_point deadline, const Tick& tick) {
  request.magic = Request::kMagic;
  request.token = token_;
  request.reader = static_cast<std::uint32_t>(self_);
  Descriptor fd = Take(deadline, tick);
  Send(fd.get(), request, deadline, tick);
  Reply reply;
  Receive(fd.get(), std::as_writable_bytes(std::span(&reply, 1)), deadline, tick);
  const auto expected = request.ask == Ask::kRead && reply.outcome == Outcome::kReached
                            ? static_cast<std::int64_t>(destination.size())
                            : 0;
  if (reply.magic != Reply::kMagic || reply.bytes != expected) {
    throw Problem{
        fmt::format("{} answered {} bytes where {} were asked for", Who(), reply.bytes, expected),
        "all ranks must run the same version of this program"};
  }
  reply.reason[sizeof(reply.reason) - 1] = '\0';
  if (expected > 0) Receive(fd.get(), destination, deadline, tick);
  if (reply.outcome != Outcome::kRefused) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(fd));
  }
  return reply;
}

Reply RemotePeer::AskPosition(Clock::time_point deadline, const Tick& tick) {
  Request request;
  request.ask = Ask::kPosition;
  return Call(request, {}, deadline, tick);
}

bool RemotePeer::TellAbort(const std::string& reason, Clock::time_point deadline) noexcept try {
  Request request;
  request.ask = Ask::kAbort;
  request.token = token_;
  request.reader = static_cast<std::uint32_t>(self_);
  std::memcpy(request.text, reason.data(), std::min(reason.size(), sizeof(request.text) - 1));
  const Tick nothing = [] {};
  const Descriptor fd = ConnectTo(endpoint_, deadline, nothing);
  Send(fd.get(), request, deadline, nothing);
  return true;
} catch (...) {
  return false;
}

Descriptor RemotePeer::Take(Clock::time_point deadline, const Tick& tick) {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Descriptor fd = std::move(idle_.back());
      idle_.pop_back();
      return fd;
    }
  }
  try {
    Descriptor fd = ConnectTo(endpoint_, deadline, tick);
    ConfigureConnection(fd.get(), timeout_);
    return fd;
  } catch (Problem& problem) {
    if (!problem.stopped) problem.text = fmt::format("{}: {}", Who(), problem.text);
    throw;
  }
}

void RemotePeer::Send(int fd, const Request& request, Clock::time_point deadline,
                      const Tick& tick) {
  const char* bytes = reinterpret_cast<const char*>(&request);
  for (std::size_t done = 0; done < sizeof(request);) {
    const ssize_t sent = ::send(fd, bytes + done, sizeof(request) - done, MSG_NOSIGNAL);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      if (!WaitFor(fd, POLLOUT, deadline, tick)) {
        throw Problem{fmt::format("{} does not take a request", Who()), kLookThere, false, true};
      }
    } else if (errno != EINTR) {
      throw Problem{fmt::format("{} closed the connection: {}", Who(), std::strerror(errno)),
                    kLookThere};
    }
  }
}

void RemotePeer::Receive(int fd, std::span<std::byte> bytes, Clock::time_point deadline,
                         const Tick& tick) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      if (!WaitFor(fd, POLLIN, deadline, tick)) {
        throw Problem{fmt::format("{} does not answer", Who()), kLookThere, false, true};
      }
    } else if (got == 0 || errno != EINTR) {
      throw Problem{fmt::format("{} closed the connection{}{}", Who(), got == 0 ? "" : ": ",
                                got == 0 ? "" : std::strerror(errno)),
                    kLookThere};
    }
  }
}

}  // namespace ullage::comm
