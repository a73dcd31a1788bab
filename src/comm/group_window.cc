#include "comm/group_window.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::comm {
namespace {

// How long a remote owner holds a request before it answers "not yet": each answer also says that
// it is alive and whether the group is being stopped.
constexpr std::chrono::milliseconds kSlice{1000};

Problem WindowIsGone(const std::string& who) {
  return {fmt::format("{} does not have this window any more", who),
          "keep a window until all ranks are done with it"};
}

std::string Seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

}  // namespace

GroupWindow::GroupWindow(std::shared_ptr<Group> group, std::uint64_t id,
                         std::shared_ptr<WindowMemory> memory,
                         const std::vector<WindowOffer>& offers)
    : group_(std::move(group)), id_(id), memory_(std::move(memory)), parts_(offers.size()) {
  for (int r = 0; r < group_->world_size(); ++r) {
    Part& part = parts_[r];
    part.offer = offers[r];
    if (r == group_->rank() || !group_->IsLocal(r)) continue;
    const std::int64_t header = WindowMemory::HeaderBytes(part.offer.words);
    part.region =
        PeerRegion(group_->process(r), part.offer.fd, header + RoundUpToPage(part.offer.bytes));
    part.header = part.region.Map(0, header);
    if (WindowMemory::Nonce(part.header.data()) != part.offer.nonce) {
      throw CommError(fmt::format("the window of {} is not the one it announced", group_->Who(r)),
                      "keep a window until all ranks are done with it");
    }
  }
}

GroupWindow::~GroupWindow() {
  if (Service* service = group_->service()) service->RemoveWindow(id_);
}

void GroupWindow::CheckArguments(int rank, int word) const {
  if (rank < 0 || rank >= group_->world_size() || word < 0 || word >= parts_[rank].offer.words) {
    throw ConfigError(fmt::format("window {}: no word {} of rank {} ({} ranks, {} words)", id_,
                                  word, rank, group_->world_size(), memory_->words()),
                      "");
  }
}

const std::byte* GroupWindow::Peer(int rank) {
  if (rank == group_->rank()) return memory_->data();
  if (rank < 0 || rank >= group_->world_size() || !group_->IsLocal(rank)) return nullptr;
  Part& part = parts_[rank];
  const std::lock_guard lock(map_mutex_);
  if (part.data.data() == nullptr) {
    part.data = part.region.Map(WindowMemory::HeaderBytes(part.offer.words),
                                RoundUpToPage(part.offer.bytes));
  }
  return part.data.data();
}

void GroupWindow::Signal(int word, std::uint64_t value) {
  CheckArguments(group_->rank(), word);
  memory_->Raise(word, value);
  group_->Notify();
}

std::uint64_t GroupWindow::LocalValue(int rank, int word) const {
  if (rank == group_->rank()) return memory_->Value(word);
  return WindowMemory::Value(parts_[rank].header.data(), word);
}

std::uint64_t GroupWindow::Peek(int rank, int word) {
  CheckArguments(rank, word);
  if (group_->IsLocal(rank)) return LocalValue(rank, word);
  try {
    Group::Watch watch(*group_);
    Request request;
    request.ask = Ask::kWait;
    request.window = id_;
    request.word = static_cast<std::uint32_t>(word);
    const Reply reply =
        group_->remote(rank).Call(request, {}, group_->Deadline(), [&] { watch.Look(); });
    if (reply.outcome == Outcome::kRefused) throw WindowIsGone(group_->Who(rank));
    return reply.value;
  } catch (const Problem& problem) {
    group_->Fail(Where(rank, word, 0, "a word"), problem);
  }
}

void GroupWindow::Wait(int rank, int word, std::uint64_t at_least, const char* what) {
  CheckArguments(rank, word);
  if (group_->IsLocal(rank)) {
    WaitLocal(rank, word, at_least, what);
  } else {
    AskRemote(Ask::kWait, rank, word, at_least, 0, {}, what);
  }
}

void GroupWindow::Read(int rank, int word, std::uint64_t at_least, std::int64_t offset,
                       std::span<std::byte> destination, const char* what) {
  CheckArguments(rank, word);
  const Part& part = parts_[rank];
  const auto size = static_cast<std::int64_t>(destination.size());
  if (offset < 0 || offset > part.offer.bytes || size > part.offer.bytes - offset) {
    throw ConfigError(fmt::format("window {}, {}: bytes {} to {} of rank {}, which has {}", id_,
                                  what, offset, offset + size, rank, part.offer.bytes),
                      "");
  }
  if (!group_->IsLocal(rank)) {
    AskRemote(Ask::kRead, rank, word, at_least, offset, destination, what);
    return;
  }
  WaitLocal(rank, word, at_least, what);
  if (size == 0) return;
  if (rank == group_->rank()) {
    std::memcpy(destination.data(), memory_->data() + offset, destination.size());
  } else {
    part.region.Read(WindowMemory::HeaderBytes(part.offer.words) + offset, destination);
  }
}

void GroupWindow::WaitLocal(int rank, int word, std::uint64_t at_least, const char* what) {
  if (LocalValue(rank, word) >= at_least) return;
  try {
    const auto deadline = group_->Deadline();
    Group::Watch watch(*group_);
    Backoff backoff;
    for (;;) {
      // Before the word: a rank that has left may have raised it as its last act.
      const State state = group_->status(rank).state();
      if (LocalValue(rank, word) >= at_least) return;
      if (state == State::kClosed) {
        throw Problem{fmt::format("{} has left the group", group_->Who(rank)),
                      "see that rank's own output for the cause"};
      }
      if (backoff.sleeping()) {
        watch.Look();
        if (Clock::now() >= deadline) {
          throw Problem{
              fmt::format("not within {}; the word stands at {}; {}", Seconds(group_->timeout()),
                          LocalValue(rank, word), group_->Positions()),
              "the rank that lags has diverged or hangs; if it is only slow, raise "
              "ullage.timeout"};
        }
      }
      backoff.Pause();
    }
  } catch (const Problem& problem) {
    group_->Fail(Where(rank, word, at_least, what), problem);
  }
}

void GroupWindow::AskRemote(Ask ask, int rank, int word, std::uint64_t at_least,
                            std::int64_t offset, std::span<std::byte> destination,
                            const char* what) {
  try {
    const auto deadline = group_->Deadline();
    Group::Watch watch(*group_);
    Request request;
    request.ask = ask;
    request.window = id_;
    request.word = static_cast<std::uint32_t>(word);
    request.at_least = at_least;
    request.offset = offset;
    request.bytes = static_cast<std::int64_t>(destination.size());
    for (;;) {
      watch.Look();
      const auto left = std::chrono::floor<std::chrono::milliseconds>(deadline - Clock::now());
      request.wait_ms =
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count() / 2, 0, kSlice.count()));
      const Reply reply =
          group_->remote(rank).Call(request, destination, deadline, [&] { watch.Look(); });
      if (reply.outcome == Outcome::kReached) return;
      if (reply.outcome == Outcome::kRefused) {
        throw WindowIsGone(group_->Who(rank));
      }
      if (reply.state == State::kAborted) throw Problem{reply.reason, "", true};
      if (Clock::now() + std::chrono::milliseconds(5) >= deadline) {
        throw Problem{fmt::format("not within {}; the word stands at {}; {}",
                                  Seconds(group_->timeout()), reply.value, group_->Positions()),
                      "the rank that lags has diverged or hangs; if it is only slow, raise "
                      "ullage.timeout"};
      }
    }
  } catch (const Problem& problem) {
    group_->Fail(Where(rank, word, at_least, what), problem);
  }
}

std::string GroupWindow::Where(int rank, int word, std::uint64_t at_least, const char* what) const {
  return fmt::format("waiting for {} of {} (window {}, word {} to reach {})", what,
                     group_->Who(rank), id_, word, at_least);
}

}  // namespace ullage::comm
