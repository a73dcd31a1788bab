#include "comm/connect.h"

#include <cstdlib>

#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "comm/c10d.h"
#include "comm/group_comm.h"
#include "comm/lone_comm.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

const Tick kNoTick = [] {};

// Who is where, as the ranks tell each other through the store.
struct Hosts {
  std::vector<bool> local;  // which ranks are on this one's host
  bool one_machine = true;  // all ranks can meet on the loopback device
};

Hosts ExchangeHosts(Store& store, int rank, int world_size) {
  const std::string machine = MachineId();
  const std::string host = HostId();
  store.Set(fmt::format("host/{}", rank), host + "\n" + machine);
  Hosts hosts;
  for (int r = 0; r < world_size; ++r) {
    const std::string theirs = store.Get(fmt::format("host/{}", r));
    const std::size_t line = theirs.find('\n');
    hosts.local.push_back(theirs.substr(0, line) == host);
    hosts.one_machine =
        hosts.one_machine && line != std::string::npos && theirs.substr(line + 1) == machine;
  }
  return hosts;
}

// The token of the run, made by rank 0.
Token ExchangeToken(Store& store, int rank) {
  if (rank == 0) {
    const Token made{RandomWord(), RandomWord()};
    store.Set("token", std::string(reinterpret_cast<const char*>(made.data()), sizeof(made)));
  }
  const std::string text = store.Get("token");
  Token token = {};
  if (text.size() != sizeof(token)) {
    throw Problem{fmt::format("the store holds a token of {} bytes", text.size()),
                  "all ranks must run the same version of this program"};
  }
  std::memcpy(token.data(), text.data(), sizeof(token));
  return token;
}

// This host's address for the others: on the way to the store, because they reach that too. Rank
// 0's own host may know its name as a loopback address, which means nothing elsewhere.
std::string AddressFor(const std::string& store, bool one_machine) {
  if (one_machine) return "127.0.0.1";
  const TcpStoreAddress address = ParseTcpStore(store);
  if (address.port == 0) return OutsideAddress();
  const std::string towards = AddressTowards(address.host, address.port);
  return IsLoopback(towards) ? OutsideAddress() : towards;
}

// All ranks learn whether all have found each other, so that none goes on alone.
void AgreeOnJoining(Transport& transport, int rank, int world_size, const std::string& failure) {
  constexpr std::size_t kText = 256;
  std::vector<std::byte> mine(kText);
  std::memcpy(mine.data(), failure.data(), std::min(failure.size(), kText - 1));
  std::vector<std::byte> all(kText * static_cast<std::size_t>(world_size));
  transport.AllGather(mine, all, kNoTick);
  if (!failure.empty()) throw Problem{failure, ""};
  for (int r = 0; r < world_size; ++r) {
    const char* text = reinterpret_cast<const char*>(all.data()) + kText * r;
    if (r != rank && *text != '\0') {
      throw Problem{fmt::format("rank {} failed: {}", r, std::string(text, ::strnlen(text, kText))),
                    "see that rank's own output"};
    }
  }
}

std::unique_ptr<Comm> Meet(Store& store, const Place& place, std::chrono::milliseconds timeout) {
  const Hosts hosts = ExchangeHosts(store, place.rank, place.world_size);
  const Token token = ExchangeToken(store, place.rank);
  const std::string address = AddressFor(place.store, hosts.one_machine);
  auto group = std::make_shared<Group>(place.rank, hosts.local, timeout);
  if (group->AnyRemote()) group->StartService(address, token);
  auto transport = store.MakeGloo(place.rank, place.world_size, address);

  const Introduction mine = group->Introduce();
  std::vector<Introduction> all(static_cast<std::size_t>(place.world_size));
  transport->AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                       kNoTick);
  Problem failure;
  try {
    group->Join(all, token);
  } catch (const CommError& error) {
    failure = AsProblem(error);
  }
  try {
    AgreeOnJoining(*transport, place.rank, place.world_size, failure.text);
  } catch (Problem& problem) {
    if (!failure.text.empty()) problem.hint = failure.hint;
    throw;
  }
  group->status().MarkRunning();
  return std::make_unique<GroupComm>(std::move(group), std::move(transport));
}

[[noreturn]] void FailToMeet(const Place& place, const Problem& problem) {
  throw CommError(
      fmt::format("rank {} of {} could not meet the others{}{}: {}", place.rank, place.world_size,
                  place.store.empty() ? "" : " at ", place.store, problem.text),
      problem.hint.empty() ? "see the output of the other ranks; all must start within the timeout"
                           : problem.hint);
}

void CheckPlace(const Place& place) {
  if (place.world_size < 1 || place.rank < 0 || place.rank >= place.world_size) {
    throw ConfigError(fmt::format("rank {} of {} ranks", place.rank, place.world_size),
                      "ranks are numbered from 0");
  }
}

}  // namespace

std::unique_ptr<Comm> Connect(const Place& place, std::chrono::milliseconds timeout) {
  CheckPlace(place);
  if (place.world_size == 1) return MakeSingleComm(timeout);
  try {
    return Meet(*OpenStore(place, timeout), place, timeout);
  } catch (const Problem& problem) {
    FailToMeet(place, problem);
  }
}

std::vector<std::unique_ptr<Comm>> ConnectThreads(int world_size,
                                                  std::chrono::milliseconds timeout) {
  // torch's flight recorder is one for the process and not safe for ranks that are threads of it:
  // two of them that record at once corrupt it. Read when the first group is made.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  std::vector<std::unique_ptr<Comm>> comms(static_cast<std::size_t>(world_size));
  CheckPlace({.rank = 0, .world_size = world_size});
  if (world_size == 1) {
    comms[0] = MakeSingleComm(timeout);
    return comms;
  }
  const std::shared_ptr<Store> store = MakeMemoryStore(timeout);
  std::vector<std::exception_ptr> errors(comms.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const Place place{.rank = rank, .world_size = world_size, .local_rank = rank};
      try {
        try {
          comms[rank] = Meet(*store, place, timeout);
        } catch (const Problem& problem) {
          FailToMeet(place, problem);
        }
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return comms;
}

}  // namespace ullage::comm
