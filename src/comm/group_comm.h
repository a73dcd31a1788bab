// The Comm of ranks that exist: fingerprints through the status pages, bytes through a Transport.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "comm/comm.h"
#include "comm/group.h"
#include "comm/transport.h"

namespace ullage::comm {

class GroupComm final : public Comm {
 public:
  // `group` has joined its peers.
  GroupComm(std::shared_ptr<Group> group, std::unique_ptr<Transport> transport);
  // Waits, for at most five seconds, until no peer is inside a collective that this rank has
  // completed, because closing its connections could disturb them.
  ~GroupComm() override;

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  bool IsLocal(int rank) const override { return group_->IsLocal(rank); }
  std::chrono::milliseconds timeout() const override { return group_->timeout(); }

  void Barrier(std::uint32_t item) override;
  void AllReduceSum(std::span<std::int64_t> values, std::uint32_t item) override;
  void AllReduceMin(std::span<std::int64_t> values, std::uint32_t item) override;
  void AllReduceMax(std::span<std::int64_t> values, std::uint32_t item) override;
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::uint32_t item) override;
  void Broadcast(std::span<std::byte> bytes, int root, std::uint32_t item) override;
  void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                std::int64_t chunk_bytes, std::uint32_t item) override;
  std::unique_ptr<Window> CreateWindow(std::int64_t bytes, int words) override;
  void Abort(const std::string& reason) noexcept override { group_->Abort(reason); }

 private:
  // Agrees with all ranks on the collective, then runs `exchange` when there are bytes to move.
  void Run(Kind kind, std::uint32_t item, std::int64_t bytes, int root,
           const std::function<void(const Tick&)>& exchange);
  // Enters the collective and compares with every peer. Throws Problem.
  void Agree(const Record& record);
  Record RecordOf(int rank, const Record& mine, Clock::time_point deadline);
  void WaitForPeers();

  const std::shared_ptr<Group> group_;
  const std::unique_ptr<Transport> transport_;
  std::mutex mutex_;  // one collective at a time
  std::uint64_t sequence_ = 0;
  std::uint64_t windows_ = 0;
};

}  // namespace ullage::comm
