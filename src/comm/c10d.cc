#include "comm/c10d.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/problem.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

using c10d::ProcessGroupGloo;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// c10d appends a stack trace to what it says.
std::string FirstLine(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// Runs `call`, turning what c10d throws into Problem.
template <class Call>
auto Translate(const char* hint, Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Problem{FirstLine(error), hint};
  }
}

template <class T>
at::Tensor View(std::span<T> values, at::ScalarType type) {
  return at::from_blob(const_cast<std::remove_const_t<T>*>(values.data()),
                       {static_cast<std::int64_t>(values.size())}, at::TensorOptions(type));
}

template <class T>
at::Tensor Bytes(std::span<T> bytes) {
  return View(bytes, at::kByte);
}

// Reaches the contexts, because c10d has no way to close the connections of a Gloo group short of
// destroying it.
class Group final : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void CloseConnections() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

using GroupPtr = c10::intrusive_ptr<Group>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Note [Giving up a Gloo call]
// Gloo cannot cancel a call, and a connection that ends in the middle of a message does not even
// wake the receiver: it waits for its timeout. So a call is waited for in small steps, and when a
// peer has died in between, the connections are closed and the call is left behind. Nothing moves
// bytes from then on: Gloo's device thread has let go of the sockets, and its worker thread, once
// it has stopped computing (kGrace), is inside a wait that will end in an exception. Destroying
// the group would wait for that, so groups with such a call are kept until it is over.
constexpr std::chrono::milliseconds kStep{20};
constexpr std::chrono::milliseconds kGrace{300};

void KeepUntilOver(GroupPtr group, WorkPtr work) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::pair<GroupPtr, WorkPtr>>;  // outlives the threads
  std::lock_guard lock(mutex);
  std::erase_if(kept, [](const auto& entry) { return entry.second->isCompleted(); });
  if (work) kept.emplace_back(std::move(group), std::move(work));
}

// c10d's flight recorder keeps a map of all groups of the process and inserts into it without a
// lock when a call is enqueued, so groups of one process (ranks as threads) enqueue in turn.
std::mutex& StartMutex() {
  static std::mutex mutex;
  return mutex;
}

class GlooTransport final : public Transport {
 public:
  GlooTransport(const StorePtr& store, int rank, int world_size, const std::string& address,
                std::chrono::milliseconds timeout) {
    KeepUntilOver({}, {});
    auto options = ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(address));
    options->threads = 1;  // one call at a time
    group_ = c10::make_intrusive<Group>(store, rank, world_size, options);
  }

  ~GlooTransport() override {
    if (left_behind_) KeepUntilOver(std::move(group_), std::move(left_behind_));
  }

  void AllReduce(std::span<std::int64_t> values, Reduction reduction, const Tick& tick) override {
    Run(tick, [&] {
      std::vector<at::Tensor> tensors{View(values, at::kLong)};
      c10d::AllreduceOptions options;
      options.reduceOp = reduction == Reduction::kSum   ? c10d::ReduceOp::SUM
                         : reduction == Reduction::kMin ? c10d::ReduceOp::MIN
                                                        : c10d::ReduceOp::MAX;
      return group_->allreduce(tensors, options);
    });
  }

  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                 const Tick& tick) override {
    Run(tick, [&] {
      at::Tensor input = Bytes(mine), output = Bytes(all);
      return group_->_allgather_base(output, input);
    });
  }

  void Broadcast(std::span<std::byte> bytes, int root, const Tick& tick) override {
    Run(tick, [&] {
      std::vector<at::Tensor> tensors{Bytes(bytes)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                const Tick& tick) override {
    Run(tick, [&] {
      at::Tensor input = Bytes(send), output = Bytes(receive);
      std::vector<std::int64_t> even;
      return group_->alltoall_base(output, input, even, even);
    });
  }

  void Close() noexcept override {
    try {
      group_->CloseConnections();
    } catch (...) {
      // Closing is a courtesy to the peers; they have their timeout.
    }
  }

 private:
  // Set by Gloo's worker thread when a call is over.
  struct Completion {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;

    bool WaitFor(std::chrono::milliseconds time) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, time, [this] { return over; });
    }
  };

  template <class Start>
  void Run(const Tick& tick, Start start) {
    const auto completion = std::make_shared<Completion>();
    WorkPtr work;
    Translate("", [&] {
      {
        const std::lock_guard lock(StartMutex());
        work = start();
      }
      work->getFuture()->addCallback([completion](c10::ivalue::Future&) {
        const std::lock_guard lock(completion->mutex);
        completion->over = true;
        completion->changed.notify_all();
      });
    });
    while (!completion->WaitFor(kStep)) {
      try {
        tick();
      } catch (...) {
        Close();
        if (!completion->WaitFor(kGrace)) left_behind_ = work;
        throw;
      }
    }
    Translate("", [&] { work->wait(); });
  }

  GroupPtr group_;
  WorkPtr left_behind_;  // a call that was given up
};

class C10dStore final : public Store {
 public:
  C10dStore(StorePtr store, std::chrono::milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {
    store_->setTimeout(timeout);
  }

  void Set(const std::string& key, const std::string& value) override {
    Translate("", [&] { store_->set(key, value); });
  }
  std::string Get(const std::string& key) override {
    return Translate("", [&] { return store_->get_to_str(key); });
  }
  std::unique_ptr<Transport> MakeGloo(int rank, int world_size,
                                      const std::string& address) override {
    return Translate("", [&] {
      return std::make_unique<GlooTransport>(c10::make_intrusive<c10d::PrefixStore>("gloo", store_),
                                             rank, world_size, address, timeout_);
    });
  }

 private:
  StorePtr store_;
  std::chrono::milliseconds timeout_;
};

// Note [One TCP store for the life of the process]
// A rank may connect a second time before rank 0 has destroyed the server of the first time; it
// would then meet a server that is about to vanish. So the store of an address is kept.
StorePtr TcpStore(const TcpStoreAddress& address, bool serve, const Place& place,
                  std::chrono::milliseconds timeout) {
  static std::mutex mutex;
  static std::map<std::string, StorePtr> stores;
  std::lock_guard lock(mutex);
  StorePtr& store = stores[fmt::format("{} {}", place.rank, place.store)];
  if (!store) {
    c10d::TCPStoreOptions options;
    options.port = address.port;
    options.isServer = serve;
    options.numWorkers = static_cast<std::size_t>(place.world_size);
    options.waitWorkers = false;
    options.multiTenant = true;
    options.timeout = timeout;
    store = c10::make_intrusive<c10d::TCPStore>(address.host, options);
  }
  return store;
}

// How often this rank has opened its store before.
int CountOpenings(const Place& place) {
  static std::mutex mutex;
  static std::map<std::string, int> openings;
  std::lock_guard lock(mutex);
  return openings[fmt::format("{} {}", place.rank, place.store)]++;
}

}  // namespace

TcpStoreAddress ParseTcpStore(const std::string& store) {
  if (!store.starts_with("tcp:")) return {};
  const std::size_t colon = store.rfind(':');
  std::string host = store.substr(4, colon < 4 ? 0 : colon - 4);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port = store.substr(colon + 1);
  unsigned long number = 0;
  if (!port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos) {
    number = std::stoul(port);
  }
  if (host.empty() || number == 0 || number > 65535) {
    throw ConfigError(
        fmt::format("store '{}': expected tcp:HOST:PORT with a port of 1 to 65535", store),
        "name the host of rank 0 and a free port there");
  }
  return {host, static_cast<std::uint16_t>(number)};
}

std::unique_ptr<Store> OpenStore(const Place& place, std::chrono::milliseconds timeout) {
  const TcpStoreAddress address = ParseTcpStore(place.store);
  const int openings = CountOpenings(place);
  if (address.port != 0) {
    return Translate(
        "check that all ranks name the same host and port (MASTER_ADDR and MASTER_PORT, or "
        "ULLAGE_STORE), that rank 0 runs there and that the port is free and reachable",
        [&] {
          const bool serve = place.rank == 0 && !place.store_is_served;
          StorePtr store = TcpStore(address, serve, place, timeout);
          const std::string prefix = fmt::format("{}/{}", place.store_prefix, openings);
          return std::make_unique<C10dStore>(
              c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store)), timeout);
        });
  }
  if (!place.store.starts_with("file:") || place.store.size() == 5) {
    throw ConfigError(fmt::format("store '{}': expected file:PATH or tcp:HOST:PORT", place.store),
                      "set ULLAGE_STORE, or start the ranks with torchrun or ullage train --ranks");
  }
  // The last rank to leave removes the file, perhaps after the first has come again: so another
  // file each time.
  std::string path = place.store.substr(5);
  if (openings > 0) path += fmt::format(".{}", openings);
  return Translate(
      "check that all ranks can write that file and that it is not left over from "
      "an earlier run",
      [&] {
        return std::make_unique<C10dStore>(
            c10::make_intrusive<c10d::FileStore>(path, place.world_size), timeout);
      });
}

std::shared_ptr<Store> MakeMemoryStore(std::chrono::milliseconds timeout) {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::HashStore>(), timeout);
}

}  // namespace ullage::comm
