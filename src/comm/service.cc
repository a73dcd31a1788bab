#include "comm/service.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/problem.h"

namespace ullage::comm {
namespace {

// Readers hold one connection for each of their threads. A stranger has not shown the token yet.
constexpr std::size_t kMostConnections = 1024;
constexpr std::ptrdiff_t kMostStrangers = 64;
constexpr std::chrono::seconds kStrangerPatience{10};
constexpr std::uint32_t kLongestWaitMs = 5000;

bool SameToken(const Token& a, const Token& b) {
  return ((a[0] ^ b[0]) | (a[1] ^ b[1])) == 0;
}

}  // namespace

struct Service::Connection {
  Descriptor fd;
  Stage stage = Stage::kReading;
  bool known = false;          // has shown the token
  Clock::time_point deadline;  // of the stage
  std::size_t done = 0;        // bytes of the request read, or of the reply and its data written
  Request request;
  Reply reply;
  std::shared_ptr<const WindowMemory> memory;  // held while a request concerns it
};

Service::Service(const std::string& address, const Token& token, const StatusPage* status,
                 std::chrono::milliseconds timeout, OnAbort on_abort)
    : token_(token), status_(status), timeout_(timeout), on_abort_(std::move(on_abort)) {
  endpoint_.address = address;
  listener_ = Listen(address, &endpoint_.port);
  wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) throw Problem{fmt::format("eventfd: {}", std::strerror(errno)), ""};
  thread_ = std::thread([this] { Loop(); });
}

Service::~Service() {
  stop_.store(true);
  const std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void Service::AddWindow(std::uint64_t id, std::shared_ptr<const WindowMemory> memory) {
  std::lock_guard lock(mutex_);
  windows_[id] = std::move(memory);
}

void Service::RemoveWindow(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  windows_.erase(id);
}

// Note [Waking the service]
// The caller has stored a word and looks whether anybody waits; the service counts a waiter and
// looks at the word. With a full fence between the two steps on both sides, at least one of them
// sees the other.
void Service::Notify() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_relaxed) == 0) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] auto written = ::write(wake_.get(), &one, sizeof(one));
}

std::shared_ptr<const WindowMemory> Service::Find(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = windows_.find(id);
  return found == windows_.end() ? nullptr : found->second;
}

void Service::Loop() {
  std::vector<pollfd> polled;
  while (!stop_.load()) {
    polled.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    auto next = Clock::now() + std::chrono::seconds(60);
    for (const auto& connection : connections_) {
      const bool writing = connection->stage == Stage::kWriting;
      polled.push_back(
          {connection->fd.get(), static_cast<short>((writing ? POLLOUT : POLLIN) | POLLRDHUP), 0});
      next = std::min(next, connection->deadline);
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    if (::poll(polled.data(), polled.size(),
               static_cast<int>(std::max<std::int64_t>(wait.count(), 0))) < 0) {
      continue;  // EINTR
    }
    if (polled[0].revents != 0) {
      std::uint64_t count;
      [[maybe_unused]] auto got = ::read(wake_.get(), &count, sizeof(count));
    }
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      auto& connection = connections_[i];
      if (!Advance(*connection, polled[2 + i].revents)) {
        if (connection->stage == Stage::kWaiting) waiting_.fetch_sub(1);
        connection.reset();
      }
    }
    std::erase(connections_, nullptr);
    if (polled[1].revents != 0) Accept();
  }
}

void Service::Accept() {
  for (;;) {
    Descriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      // Out of descriptors: the listener stays readable, so do not spin on it.
      if (errno == EMFILE || errno == ENFILE) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return;
    }
    MakeRoom();
    if (connections_.size() >= kMostConnections) continue;
    ConfigureConnection(fd.get(), timeout_);
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->deadline = Clock::now() + kStrangerPatience;
    connections_.push_back(std::move(connection));
  }
}

// Strangers must not keep readers out: the one that came first goes.
void Service::MakeRoom() {
  const auto is_stranger = [](const auto& connection) { return !connection->known; };
  if (std::ranges::count_if(connections_, is_stranger) < kMostStrangers) return;
  connections_.erase(std::ranges::find_if(connections_, is_stranger));
}

bool Service::Advance(Connection& connection, short events) {
  if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) return false;
  switch (connection.stage) {
    case Stage::kReading:
      if ((events & POLLIN) != 0) return ReadRequest(connection);
      if ((events & POLLRDHUP) != 0) return false;
      return Clock::now() < connection.deadline;
    case Stage::kWaiting:
      if ((events & POLLRDHUP) != 0) return false;
      // One request at a time: whoever talks while it waits has lost the thread.
      if ((events & POLLIN) != 0) return false;
      return TryAnswer(connection);
    case Stage::kWriting:
      if ((events & POLLOUT) != 0) return WriteReply(connection);
      return Clock::now() < connection.deadline;
  }
  return false;
}

bool Service::ReadRequest(Connection& connection) {
  auto* bytes = reinterpret_cast<char*>(&connection.request);
  const ssize_t got =
      ::recv(connection.fd.get(), bytes + connection.done, sizeof(Request) - connection.done, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.done += static_cast<std::size_t>(got);
  return connection.done < sizeof(Request) || CheckRequest(connection);
}

bool Service::CheckRequest(Connection& connection) {
  const Request& request = connection.request;
  if (request.magic != Request::kMagic || !SameToken(request.token, token_)) {
    // Once: a stranger that comes again and again must not fill the log.
    Log(std::exchange(warned_, true) ? LogLevel::kDebug : LogLevel::kWarn, "comm",
        fmt::format("a connection to {} that does not belong to this run was closed",
                    Describe(endpoint_)));
    return false;
  }
  connection.known = true;
  connection.done = 0;
  connection.reply = Reply{};
  bool valid = request.wait_ms <= kLongestWaitMs;
  switch (request.ask) {
    case Ask::kAbort:
      on_abort_(std::string(request.text, ::strnlen(request.text, sizeof(request.text))));
      return false;
    case Ask::kPosition:
      break;
    case Ask::kRead:
    case Ask::kWait:
      connection.memory = Find(request.window);
      valid = valid && connection.memory != nullptr &&
              request.word < static_cast<std::uint32_t>(connection.memory->words());
      if (valid && request.ask == Ask::kRead) {
        const std::int64_t size = connection.memory->bytes();
        valid = request.offset >= 0 && request.bytes >= 0 && request.offset <= size &&
                request.bytes <= size - request.offset;
      }
      break;
    default:
      valid = false;
  }
  if (!valid) {
    Fill(connection.reply);
    connection.reply.outcome = Outcome::kRefused;
    connection.stage = Stage::kWriting;
    connection.deadline = Clock::now() + timeout_;
    return WriteReply(connection);
  }
  connection.stage = Stage::kWaiting;
  connection.deadline = Clock::now() + std::chrono::milliseconds(request.wait_ms);
  waiting_.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Note [Waking the service]
  return TryAnswer(connection);
}

void Service::Fill(Reply& reply) const {
  const Position position = status_->position();
  reply.state = status_->state();
  reply.entered = position.entered;
  reply.finished = position.finished;
  reply.record = position.last;
  if (reply.state == State::kAborted) {
    const std::string reason = status_->reason();
    std::memcpy(reply.reason, reason.data(), std::min(reason.size(), sizeof(reply.reason) - 1));
  }
}

bool Service::TryAnswer(Connection& connection) {
  const Request& request = connection.request;
  Reply& reply = connection.reply;
  bool reached;
  if (request.ask == Ask::kPosition) {
    reached = status_->entered() >= request.at_least;
  } else {
    reply.value = connection.memory->Value(static_cast<int>(request.word));
    reached = reply.value >= request.at_least;
  }
  const bool stopped = status_->state() == State::kAborted;
  if (!reached && !stopped && Clock::now() < connection.deadline) return true;

  Fill(reply);
  reply.outcome = reached ? Outcome::kReached : Outcome::kNotYet;
  if (reached && request.ask == Ask::kPosition && request.at_least > 0) {
    reply.record = status_->At(request.at_least - 1);
  }
  if (reached && request.ask == Ask::kRead) reply.bytes = request.bytes;
  waiting_.fetch_sub(1);
  connection.stage = Stage::kWriting;
  connection.deadline = Clock::now() + timeout_;
  return WriteReply(connection);
}

bool Service::WriteReply(Connection& connection) {
  const auto total = sizeof(Reply) + static_cast<std::size_t>(connection.reply.bytes);
  while (connection.done < total) {
    iovec parts[2];
    msghdr message = {};
    message.msg_iov = parts;
    if (connection.done < sizeof(Reply)) {
      parts[message.msg_iovlen++] = {reinterpret_cast<char*>(&connection.reply) + connection.done,
                                     sizeof(Reply) - connection.done};
    }
    const std::size_t sent_data = std::max(connection.done, sizeof(Reply)) - sizeof(Reply);
    if (connection.reply.bytes > 0) {
      parts[message.msg_iovlen++] = {
          connection.memory->data() + connection.request.offset + sent_data,
          total - sizeof(Reply) - sent_data};
    }
    const ssize_t sent = ::sendmsg(connection.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    connection.done += static_cast<std::size_t>(sent);
    connection.deadline = Clock::now() + timeout_;
  }
  const bool refused = connection.reply.outcome == Outcome::kRefused;
  connection.memory.reset();
  connection.done = 0;
  connection.stage = Stage::kReading;
  // A reader may be silent for as long as it likes; the kernel notices a dead one.
  connection.deadline = Clock::time_point::max();
  return !refused;
}

}  // namespace ullage::comm
