#include "comm/group_comm.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "comm/group_window.h"
#include "comm/sizes.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

constexpr std::chrono::seconds kFarewellPatience{5};
constexpr std::chrono::milliseconds kSlice{1000};

}  // namespace

GroupComm::GroupComm(std::shared_ptr<Group> group, std::unique_ptr<Transport> transport)
    : group_(std::move(group)), transport_(std::move(transport)) {}

GroupComm::~GroupComm() {
  if (!group_->stopped()) WaitForPeers();
  group_->status().MarkClosed();
  transport_->Close();
}

void GroupComm::WaitForPeers() {
  const auto deadline =
      Clock::now() + std::min<std::chrono::milliseconds>(kFarewellPatience, group_->timeout());
  try {
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      Group::Watch watch(*group_);
      for (;;) {
        State state;
        std::uint64_t finished;
        if (group_->IsLocal(r)) {
          state = group_->status(r).state();
          finished = group_->status(r).finished();
        } else {
          const Reply reply = group_->remote(r).AskPosition(deadline, [&] { watch.Look(); });
          state = reply.state;
          finished = reply.finished;
        }
        const bool behind = state == State::kJoining ||
                            (state == State::kRunning && finished < group_->status().finished());
        if (!behind || Clock::now() >= deadline) break;
        watch.Look();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  } catch (const Problem&) {
    // The peer has gone already, or the group is being stopped: nobody is left to wait for.
  }
}

void GroupComm::Run(Kind kind, std::uint32_t item, std::int64_t bytes, int root,
                    const std::function<void(const Tick&)>& exchange) {
  const std::lock_guard lock(mutex_);
  const Record record{{kind, item, sequence_}, bytes, root};
  try {
    group_->CheckStopped();
    Agree(record);
    if (bytes > 0) {
      try {
        Group::Watch watch(*group_);
        exchange([&watch] { watch.LookFar(); });
      } catch (const Problem& problem) {
        transport_->Close();
        if (!problem.stopped) group_->FindCulprit();
        throw;
      }
    }
    ++sequence_;
    group_->status().Finish();
    group_->Notify();
  } catch (const Problem& problem) {
    transport_->Close();
    group_->Fail(Describe(record), problem);
  }
}

void GroupComm::Agree(const Record& record) {
  group_->status().Enter(record);
  group_->Notify();
  const auto deadline = group_->Deadline();
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank()) continue;
    const Record theirs = RecordOf(r, record, deadline);
    if (record.Agrees(theirs)) continue;
    const bool same_call = record.fingerprint.kind == theirs.fingerprint.kind &&
                           record.fingerprint.item == theirs.fingerprint.item;
    throw Problem{fmt::format("the ranks have diverged: rank {} is {}; rank {} is {}", rank(),
                              Describe(record, same_call), r, Describe(theirs, same_call)),
                  "all ranks must call Forward, Backward, Step, Save and the collectives in the "
                  "same order, with the same settings"};
  }
}

// Waits until rank `rank` has entered the collective at the position of `mine`.
Record GroupComm::RecordOf(int rank, const Record& mine, Clock::time_point deadline) {
  const std::uint64_t sequence = mine.fingerprint.sequence;
  Group::Watch watch(*group_);
  const auto late = [&] {
    return Problem{fmt::format("{} did not come within {:g} s; {}", group_->Who(rank),
                               static_cast<double>(timeout().count()) / 1000, group_->Positions()),
                   "the rank that lags has diverged or hangs; if it is only slow, raise "
                   "ullage.timeout"};
  };
  if (group_->IsLocal(rank)) {
    const StatusPage& page = group_->status(rank);
    Backoff backoff;
    for (;;) {
      const State state = page.state();
      if (page.entered() > sequence) return page.At(sequence);
      if (state == State::kClosed) {
        throw Problem{
            fmt::format("{} has left the group {}", group_->Who(rank), Describe(page.position())),
            "see that rank's own output for the cause"};
      }
      if (backoff.sleeping()) {
        watch.Look();
        if (Clock::now() >= deadline) throw late();
      }
      backoff.Pause();
    }
  }
  Request request;
  request.ask = Ask::kPosition;
  request.at_least = sequence + 1;
  for (;;) {
    watch.Look();
    const auto left = std::chrono::floor<std::chrono::milliseconds>(deadline - Clock::now());
    request.wait_ms =
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count() / 2, 0, kSlice.count()));
    const Reply reply = group_->remote(rank).Call(request, {}, deadline, [&] { watch.Look(); });
    if (reply.outcome == Outcome::kReached) return reply.record;
    if (reply.state == State::kAborted) throw Problem{reply.reason, "", true};
    if (Clock::now() + std::chrono::milliseconds(5) >= deadline) throw late();
  }
}

void GroupComm::Barrier(std::uint32_t item) {
  Run(Kind::kBarrier, item, 0, 0, [](const Tick&) {});
}

void GroupComm::AllReduceSum(std::span<std::int64_t> values, std::uint32_t item) {
  Run(Kind::kAllReduceSum, item, SizeBytes(values), 0,
      [&](const Tick& tick) { transport_->AllReduce(values, Reduction::kSum, tick); });
}

void GroupComm::AllReduceMin(std::span<std::int64_t> values, std::uint32_t item) {
  Run(Kind::kAllReduceMin, item, SizeBytes(values), 0,
      [&](const Tick& tick) { transport_->AllReduce(values, Reduction::kMin, tick); });
}

void GroupComm::AllReduceMax(std::span<std::int64_t> values, std::uint32_t item) {
  Run(Kind::kAllReduceMax, item, SizeBytes(values), 0,
      [&](const Tick& tick) { transport_->AllReduce(values, Reduction::kMax, tick); });
}

void GroupComm::AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                          std::uint32_t item) {
  CheckAllGather(mine, all, world_size());
  Run(Kind::kAllGather, item, SizeBytes(mine), 0,
      [&](const Tick& tick) { transport_->AllGather(mine, all, tick); });
}

void GroupComm::Broadcast(std::span<std::byte> bytes, int root, std::uint32_t item) {
  CheckRoot(root, world_size());
  Run(Kind::kBroadcast, item, SizeBytes(bytes), root,
      [&](const Tick& tick) { transport_->Broadcast(bytes, root, tick); });
}

void GroupComm::AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                         std::int64_t chunk_bytes, std::uint32_t item) {
  CheckAllToAll(send, receive, chunk_bytes, world_size());
  Run(Kind::kAllToAll, item, chunk_bytes, 0,
      [&](const Tick& tick) { transport_->AllToAll(send, receive, tick); });
}

std::unique_ptr<Window> GroupComm::CreateWindow(std::int64_t bytes, int words) {
  CheckWindow(bytes, words);
  const std::uint64_t id = windows_++;
  std::shared_ptr<WindowMemory> memory;
  const std::uint64_t nonce = RandomWord();
  try {
    memory = std::make_shared<WindowMemory>(bytes, words, nonce, group_->AnyLocalPeer());
  } catch (const OutOfMemoryError& error) {
    group_->Abort(fmt::format("rank {} at create_window: {}", rank(), error.what()));
    throw;
  }
  if (Service* service = group_->service()) service->AddWindow(id, memory);

  const WindowOffer mine{bytes, nonce, words, memory->fd()};
  std::vector<WindowOffer> offers(static_cast<std::size_t>(world_size()));
  std::unique_ptr<Window> window;
  Run(Kind::kCreateWindow, static_cast<std::uint32_t>(id), sizeof(WindowOffer), 0,
      [&](const Tick& tick) {
        transport_->AllGather(std::as_bytes(std::span(&mine, 1)),
                              std::as_writable_bytes(std::span(offers)), tick);
        try {
          window = std::make_unique<GroupWindow>(group_, id, memory, offers);
        } catch (const CommError& error) {
          throw AsProblem(error);
        }
        // Nobody may destroy a window before all have opened it.
        const std::byte opened{1};
        std::vector<std::byte> all(static_cast<std::size_t>(world_size()));
        transport_->AllGather(std::span(&opened, 1), all, tick);
      });
  return window;
}

}  // namespace ullage::comm
