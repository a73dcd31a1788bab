#include "comm/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "comm/problem.h"

namespace ullage::comm {
namespace {

constexpr std::chrono::milliseconds kTick{20};

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList Resolve(const std::string& host, std::uint16_t port, int type, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw Problem{fmt::format("host '{}' is unknown: {}", host, ::gai_strerror(error)),
                  "check MASTER_ADDR, or the host in ULLAGE_STORE"};
  }
  return AddressList(found, &::freeaddrinfo);
}

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

}  // namespace

std::string Describe(const Endpoint& endpoint) {
  return endpoint.address.find(':') == std::string::npos
             ? fmt::format("{}:{}", endpoint.address, endpoint.port)
             : fmt::format("[{}]:{}", endpoint.address, endpoint.port);
}

std::string AddressTowards(const std::string& host, std::uint16_t port) {
  const AddressList found = Resolve(host, port, SOCK_DGRAM, 0);
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    // Connecting a datagram socket sends nothing; it only picks the route.
    Descriptor fd(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
    const std::string address = Numeric(reinterpret_cast<sockaddr*>(&own), size);
    if (!address.empty()) return address;
  }
  throw Problem{fmt::format("no route from this host to '{}': {}", host, std::strerror(errno)),
                "check MASTER_ADDR and the network of this host"};
}

std::string OutsideAddress() {
  const char* wanted = std::getenv("GLOO_SOCKET_IFNAME");
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw Problem{fmt::format("cannot list the network interfaces: {}", std::strerror(errno)), ""};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      if (wanted != nullptr ? std::strcmp(wanted, entry->ifa_name) != 0
                            : (entry->ifa_flags & IFF_LOOPBACK) != 0) {
        continue;
      }
      const std::string address =
          Numeric(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (!address.empty()) return address;
    }
  }
  throw Problem{wanted != nullptr
                    ? fmt::format("GLOO_SOCKET_IFNAME={}: no such interface is up", wanted)
                    : std::string("no network interface but the loopback is up"),
                "name the interface that the other hosts can reach in GLOO_SOCKET_IFNAME"};
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Descriptor Listen(const std::string& address, std::uint16_t* port) {
  const AddressList found = Resolve(address, 0, SOCK_STREAM, AI_NUMERICHOST | AI_PASSIVE);
  Descriptor fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(fd.get(), 128) != 0) {
    throw Problem{fmt::format("cannot listen on {}: {}", address, std::strerror(errno)),
                  "check the network interface of this host, or name one in GLOO_SOCKET_IFNAME"};
  }
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    throw Problem{fmt::format("getsockname: {}", std::strerror(errno)), ""};
  }
  *port = ntohs(own.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&own)->sin_port
                                         : reinterpret_cast<sockaddr_in6*>(&own)->sin6_port);
  return fd;
}

Descriptor ConnectTo(const Endpoint& endpoint, Clock::time_point deadline, const Tick& tick) {
  const AddressList found =
      Resolve(endpoint.address, endpoint.port, SOCK_STREAM, AI_NUMERICHOST | AI_NUMERICSERV);
  Descriptor fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = fd.valid() ? 0 : errno;
  if (error == 0 && ::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      if (WaitFor(fd.get(), POLLOUT, deadline, tick)) {
        socklen_t size = sizeof(error);
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      } else {
        error = ETIMEDOUT;
      }
    }
  }
  if (error != 0) {
    throw Problem{fmt::format("cannot connect to {}: {}", Describe(endpoint), std::strerror(error)),
                  "see the output of that host's ranks; if they run, check the network and the "
                  "firewall between the hosts",
                  false, error == ETIMEDOUT};
  }
  return fd;
}

void ConfigureConnection(int fd, std::chrono::milliseconds timeout) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const auto bounded = std::clamp<std::int64_t>(timeout.count(), 1000, 3'600'000);
  const auto user_timeout = static_cast<unsigned>(bounded);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof(user_timeout));
}

bool WaitFor(int fd, short events, Clock::time_point deadline, const Tick& tick) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd entry = {fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min(left, kTick).count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) {
      throw Problem{fmt::format("poll: {}", std::strerror(errno)), ""};
    }
    tick();
  }
}

}  // namespace ullage::comm
