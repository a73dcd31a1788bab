// The parts of c10d that this room uses, behind a header that costs nothing to include.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/connect.h"
#include "comm/transport.h"

namespace ullage::comm {

// A key-value store that all ranks see. Thread-safe. Calls throw Problem.
class Store {
 public:
  virtual ~Store() = default;
  virtual void Set(const std::string& key, const std::string& value) = 0;
  // Waits for the key until the timeout.
  virtual std::string Get(const std::string& key) = 0;
  // Gloo's collectives among the ranks of this store. `address` is this host's, numeric.
  virtual std::unique_ptr<Transport> MakeGloo(int rank, int world_size,
                                              const std::string& address) = 0;
};

// Opens the store that `place` names. Calling it again in one process gives a fresh set of keys,
// provided that all ranks call it equally often.
std::unique_ptr<Store> OpenStore(const Place& place, std::chrono::milliseconds timeout);

// A store within the process.
std::shared_ptr<Store> MakeMemoryStore(std::chrono::milliseconds timeout);

// "tcp:HOST:PORT" taken apart; port 0 when `store` is of another form. IPv6 addresses stand in
// brackets. Throws ConfigError.
struct TcpStoreAddress {
  std::string host;
  std::uint16_t port = 0;
};
TcpStoreAddress ParseTcpStore(const std::string& store);

}  // namespace ullage::comm
