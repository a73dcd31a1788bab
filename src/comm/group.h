// What the Comm and the windows of one rank share: who the peers are, whether they live, and how
// the group ends when something fails.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/backoff.h"
#include "comm/host.h"
#include "comm/problem.h"
#include "comm/region.h"
#include "comm/remote_peer.h"
#include "comm/service.h"
#include "comm/status_page.h"

namespace ullage::comm {

// What a rank tells its peers about itself when they meet. Sent as bytes.
struct Introduction {
  ProcessId process;
  std::int32_t status_fd = -1;
  std::uint32_t port = 0;  // of its service; 0 when it has none
  std::uint64_t nonce = 0;
  char address[64] = {};
};

std::uint64_t RandomWord();

class Group {
 public:
  // `local[r]`: rank r is on this host. Throws OutOfMemoryError.
  Group(int rank, std::vector<bool> local, std::chrono::milliseconds timeout);
  ~Group();

  // Before Join, where some rank is not local. Throws Problem.
  void StartService(const std::string& address, const Token& token);
  Introduction Introduce() const;
  // Opens the status pages of local peers. Throws CommError.
  void Join(const std::vector<Introduction>& peers, const Token& token);

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(peers_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  Clock::time_point Deadline() const { return Clock::now() + timeout_; }
  bool IsLocal(int rank) const { return peers_[rank].local; }
  bool AnyRemote() const;
  bool AnyLocalPeer() const;
  const ProcessId& process(int rank) const { return peers_[rank].process; }
  StatusPage& status() { return *status_; }
  const StatusPage& status(int rank) const { return *peers_[rank].status; }  // local ranks
  RemotePeer& remote(int rank) { return *peers_[rank].remote; }              // the others
  Service* service() { return service_.get(); }
  // Tells waiting remote readers that something has changed.
  void Notify() {
    if (service_) service_->Notify();
  }

  // How a blocked call looks around. Throws Problem when the group is being stopped, or when a
  // local peer has died; looks into /proc every 20 ms at most.
  class Watch {
   public:
    explicit Watch(Group& group) : group_(group) {}
    void Look();
    // Also asks every remote peer once a second, for calls that would not notice its end.
    void LookFar();

   private:
    Group& group_;
    Clock::time_point next_ = Clock::now();
    Clock::time_point next_far_ = Clock::now() + std::chrono::seconds(1);
  };

  // Throws Problem when this rank or a local peer has stopped the group.
  void CheckStopped() const;
  // Throws Problem when the process of a local peer has ended.
  void CheckAlive() const;
  // Throws Problem when a remote peer is gone or has stopped the group; one that only does not
  // answer may be busy. Takes up to a second.
  void CheckRemote();
  // Looks for the rank that is behind an error of the network: a local peer that died, a remote
  // one that does not answer. Throws Problem when it finds one. Takes up to a second.
  void FindCulprit();

  // "rank 1 (process 77)" or "rank 2 (10.0.0.2:4711)".
  std::string Who(int rank) const;
  // "positions: rank 0 in barrier of item 3, position 4; rank 1 ...". Asks remote ranks, for at
  // most a second altogether.
  std::string Positions();

  // Stops the group and throws CommError: "rank 0 at ...: <problem>".
  [[noreturn]] void Fail(const std::string& where, const Problem& problem);
  // Marks this rank's page, so that local peers and callers of this rank stop, and tells remote
  // ones. The first reason stays.
  void Abort(const std::string& reason) noexcept;
  bool stopped() const { return status_->state() == State::kAborted; }

 private:
  struct Peer {
    bool local = false;
    ProcessId process;
    PeerRegion region;
    Mapping mapping;
    const StatusPage* status = nullptr;
    std::unique_ptr<RemotePeer> remote;
  };

  bool Mark(const std::string& reason) noexcept;
  // Calls `call` for every remote peer below rank `most_ranks`, each on a thread of its own, and
  // waits for all.
  void ForEachRemote(int most_ranks, const std::function<void(int, RemotePeer&)>& call);

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::uint64_t nonce_;
  OwnedRegion region_;
  StatusPage* status_;
  std::vector<Peer> peers_;
  std::mutex mark_mutex_;
  std::unique_ptr<Service> service_;  // last: its thread uses the page above
};

}  // namespace ullage::comm
