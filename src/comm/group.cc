#include "comm/group.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::comm {
namespace {

constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::chrono::milliseconds kCulpritPatience{300};
constexpr std::chrono::milliseconds kProbePatience{700};
constexpr const char* kSeeThatRank =
    "see that rank's own output for the cause; the others end because they cannot go on without it";

const Tick kNoTick = [] {};

// What a rank says to the others is one line: without its own hint.
std::string WithoutHint(const std::string& text) {
  return text.substr(0, text.find("\nhint:"));
}

}  // namespace

std::uint64_t RandomWord() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), 0) != sizeof(word)) {
    throw CommError("the system gives no random bytes (getrandom)", "check /dev/urandom");
  }
  return word;
}

Group::Group(int rank, std::vector<bool> local, std::chrono::milliseconds timeout)
    : rank_(rank),
      timeout_(timeout),
      nonce_(RandomWord()),
      region_(OwnedRegion::Shared("ullage-status", sizeof(StatusPage))),
      status_(new (region_.data()) StatusPage),
      peers_(local.size()) {
  status_->Initialize(nonce_);
  for (std::size_t r = 0; r < local.size(); ++r) peers_[r].local = local[r];
  peers_[rank].status = status_;
  peers_[rank].process = ThisProcess();
}

Group::~Group() {
  status_->MarkClosed();
}

void Group::StartService(const std::string& address, const Token& token) {
  service_ = std::make_unique<Service>(address, token, status_, timeout_,
                                       [this](const std::string& reason) { Mark(reason); });
}

Introduction Group::Introduce() const {
  Introduction introduction;
  introduction.process = peers_[rank_].process;
  introduction.status_fd = region_.fd();
  introduction.nonce = nonce_;
  if (service_) {
    const Endpoint& endpoint = service_->endpoint();
    introduction.port = endpoint.port;
    std::memcpy(introduction.address, endpoint.address.c_str(),
                std::min(endpoint.address.size(), sizeof(introduction.address) - 1));
  }
  return introduction;
}

void Group::Join(const std::vector<Introduction>& peers, const Token& token) {
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[r];
    const Introduction& introduction = peers[r];
    if (!peer.local) {
      const std::string address(introduction.address,
                                ::strnlen(introduction.address, sizeof(introduction.address)));
      peer.remote = std::make_unique<RemotePeer>(
          rank_, r, Endpoint{address, static_cast<std::uint16_t>(introduction.port)}, token,
          timeout_);
      continue;
    }
    peer.process = introduction.process;
    peer.region = PeerRegion(introduction.process, introduction.status_fd, sizeof(StatusPage));
    peer.mapping = peer.region.Map(0, RoundUpToPage(sizeof(StatusPage)));
    peer.status = reinterpret_cast<const StatusPage*>(peer.mapping.data());
    if (peer.status->nonce() != introduction.nonce) {
      throw CommError(fmt::format("the status page of {} is not the one it announced", Who(r)),
                      kSeeThatRank);
    }
  }
}

bool Group::AnyRemote() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) { return !peer.local; });
}

bool Group::AnyLocalPeer() const {
  return std::ranges::count_if(peers_, [](const Peer& peer) { return peer.local; }) > 1;
}

void Group::Watch::Look() {
  group_.CheckStopped();
  if (const auto now = Clock::now(); now >= next_) {
    next_ = now + kLookEvery;
    group_.CheckAlive();
  }
}

void Group::Watch::LookFar() {
  Look();
  if (Clock::now() < next_far_) return;
  group_.CheckRemote();
  next_far_ = Clock::now() + std::chrono::seconds(1);
}

void Group::CheckRemote() {
  const auto deadline = Clock::now() + kProbePatience;
  std::mutex mutex;
  std::optional<Problem> found;
  ForEachRemote(world_size(), [&](int, RemotePeer& remote) {
    try {
      const Reply reply = remote.AskPosition(deadline, kNoTick);
      if (reply.state == State::kAborted) throw Problem{reply.reason, kSeeThatRank, true};
    } catch (const Problem& problem) {
      const std::lock_guard lock(mutex);
      if (!problem.no_answer && !found) found = problem;
    }
  });
  if (found) throw *found;
}

void Group::CheckStopped() const {
  for (const Peer& peer : peers_) {
    if (peer.local && peer.status != nullptr && peer.status->state() == State::kAborted) {
      throw Problem{peer.status->reason(), kSeeThatRank, true};
    }
  }
}

void Group::CheckAlive() const {
  for (int r = 0; r < world_size(); ++r) {
    const Peer& peer = peers_[r];
    if (r == rank_ || !peer.local || peer.status == nullptr) continue;
    const State state = peer.status->state();
    if (state != State::kClosed && state != State::kAborted && !IsAlive(peer.process)) {
      throw Problem{
          fmt::format("{} has died; it was {}", Who(r), Describe(peer.status->position())),
          kSeeThatRank};
    }
  }
}

void Group::FindCulprit() {
  // The connection of a dying process closes before the process is seen to be gone, and the reason
  // of a failing rank is on its way.
  const auto patience = Clock::now() + kCulpritPatience;
  do {
    CheckStopped();
    CheckAlive();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (Clock::now() < patience);
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank_) continue;
    if (peers_[r].remote == nullptr) {
      if (peers_[r].local && peers_[r].status != nullptr &&
          peers_[r].status->state() == State::kClosed) {
        throw Problem{fmt::format("{} has left the group", Who(r)), kSeeThatRank};
      }
      continue;
    }
    const Reply reply = peers_[r].remote->AskPosition(Clock::now() + kProbePatience, kNoTick);
    if (reply.state == State::kAborted) throw Problem{reply.reason, kSeeThatRank, true};
  }
}

std::string Group::Who(int rank) const {
  const Peer& peer = peers_[rank];
  if (peer.remote) return fmt::format("rank {} ({})", rank, Describe(peer.remote->endpoint()));
  return fmt::format("rank {} (process {})", rank, peer.process.pid);
}

std::string Group::Positions() {
  constexpr int kMostRanks = 16;
  const auto deadline = Clock::now() + kProbePatience;
  std::vector<std::string> places(peers_.size(), "does not answer");
  ForEachRemote(kMostRanks, [&](int r, RemotePeer& remote) {
    const Reply reply = remote.AskPosition(deadline, kNoTick);
    places[r] = Describe(Position{reply.entered, reply.finished, reply.record});
  });
  std::string text = "positions:";
  for (int r = 0; r < std::min(world_size(), kMostRanks); ++r) {
    if (peers_[r].status != nullptr) places[r] = Describe(peers_[r].status->position());
    text += fmt::format("{} rank {} {}", r == 0 ? "" : ";", r, places[r]);
  }
  return text;
}

// At once, because a peer that does not answer must not use up the patience for the others.
void Group::ForEachRemote(int most_ranks, const std::function<void(int, RemotePeer&)>& call) {
  std::vector<std::jthread> threads;
  for (int r = 0; r < std::min(world_size(), most_ranks); ++r) {
    if (peers_[r].remote == nullptr) continue;
    threads.emplace_back([&call, r, remote = peers_[r].remote.get()] {
      try {
        call(r, *remote);
      } catch (const Problem&) {
        // The peer is out of reach, which is what the caller is about to report.
      }
    });
  }
}

void Group::Fail(const std::string& where, const Problem& problem) {
  if (problem.stopped) {
    Mark(problem.text);
    throw CommError(
        fmt::format("rank {} {}: the group was stopped: {}", rank_, where, problem.text),
        problem.hint);
  }
  const std::string text = fmt::format("rank {} {}: {}", rank_, where, problem.text);
  Abort(text);
  throw CommError(text, problem.hint);
}

// True when this was the first reason.
bool Group::Mark(const std::string& reason) noexcept {
  const std::lock_guard lock(mark_mutex_);
  if (stopped()) return false;
  status_->MarkAborted(reason);
  return true;
}

void Group::Abort(const std::string& reason) noexcept try {
  const std::string line = WithoutHint(reason);
  if (!Mark(line)) return;
  Notify();
  const auto deadline = Clock::now() + kProbePatience;
  ForEachRemote(world_size(), [&](int, RemotePeer& remote) { remote.TellAbort(line, deadline); });
} catch (...) {
  // Out of memory while composing the message: the page is marked all the same.
  Mark("out of memory while failing");
}

}  // namespace ullage::comm
