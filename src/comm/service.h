// The thread that answers the readers of other hosts.
//
// It serves the windows of this rank and its position, and hears when a remote rank stops the
// group. It trusts nobody: a request without the token of the run, or outside what exists, ends
// its connection and nothing else; a stranger that says nothing is closed after ten seconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/socket.h"
#include "comm/window_memory.h"
#include "comm/wire.h"

namespace ullage::comm {

class Service {
 public:
  // Called on the service's thread when a remote rank says that it stops the group.
  using OnAbort = std::function<void(const std::string& reason)>;

  // Listens on `address` at a free port and starts the thread. `status` must outlive the service.
  // Throws Problem.
  Service(const std::string& address, const Token& token, const StatusPage* status,
          std::chrono::milliseconds timeout, OnAbort on_abort);
  ~Service();

  const Endpoint& endpoint() const { return endpoint_; }

  void AddWindow(std::uint64_t id, std::shared_ptr<const WindowMemory> memory);
  // Requests under way keep the memory; later ones are refused.
  void RemoveWindow(std::uint64_t id);

  // To be called after a word, the position or the state has changed, so that waiting requests are
  // looked at again. Costs a load when nobody waits. Thread-safe.
  void Notify();

 private:
  enum class Stage { kReading, kWaiting, kWriting };
  struct Connection;

  void Loop();
  void Accept();
  void MakeRoom();
  // Each returns false when the connection is to be closed.
  bool Advance(Connection& connection, short events);
  bool ReadRequest(Connection& connection);
  bool CheckRequest(Connection& connection);
  bool TryAnswer(Connection& connection);
  bool WriteReply(Connection& connection);
  void Fill(Reply& reply) const;
  std::shared_ptr<const WindowMemory> Find(std::uint64_t id);

  const Token token_;
  const StatusPage* const status_;
  const std::chrono::milliseconds timeout_;
  const OnAbort on_abort_;
  Endpoint endpoint_;
  Descriptor listener_;
  Descriptor wake_;  // eventfd
  std::atomic<bool> stop_{false};
  std::atomic<int> waiting_{0};
  std::mutex mutex_;  // guards windows_
  std::map<std::uint64_t, std::shared_ptr<const WindowMemory>> windows_;
  std::vector<std::unique_ptr<Connection>> connections_;  // of the thread
  bool warned_ = false;                                   // of the thread
  std::thread thread_;
};

}  // namespace ullage::comm
