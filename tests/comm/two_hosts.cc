// One rank of tests/comm/two_hosts.sh: finds the others through the environment.
//
//   two_hosts agree   checks windows and collectives with all ranks, prints "agreed HASH"
//   two_hosts cut     goes on until the link is cut, prints the error; exits 1 if there is none
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "comm/connect.h"
#include "ullage/error.h"

namespace {

using namespace ullage::comm;

constexpr std::int64_t kBytes = 1'000'000;

// One round: everybody writes a pattern, reads that of all others and adds up what it saw.
std::int64_t Round(Comm& comm, Window& window, std::uint64_t round) {
  std::memset(window.data(), static_cast<int>(round * 7 + comm.rank()), kBytes);
  window.Signal(0, round);
  std::vector<std::int64_t> sum{0};
  for (int r = 0; r < comm.world_size(); ++r) {
    std::vector<std::byte> got(kBytes);
    window.Read(r, 0, round, 0, got, "the pattern");
    for (const std::byte b : got) sum[0] += std::to_integer<int>(b);
  }
  comm.AllReduceSum(sum, static_cast<std::uint32_t>(round));
  return sum[0];
}

int Agree(Comm& comm) {
  auto window = comm.CreateWindow(kBytes, 1);
  std::uint64_t hash = 0;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    hash = hash * 1'000'003 + static_cast<std::uint64_t>(Round(comm, *window, round));
  }
  window.reset();
  int local = 0;
  for (int r = 0; r < comm.world_size(); ++r) local += comm.IsLocal(r) ? 1 : 0;
  std::printf("agreed %016lx, %d of %d ranks local\n", hash, local, comm.world_size());
  return 0;
}

int UntilCut(Comm& comm) {
  auto window = comm.CreateWindow(kBytes, 1);
  try {
    for (std::uint64_t round = 1;; ++round) {
      Round(comm, *window, round);
      if (round == 5) {
        std::puts("running");
        std::fflush(stdout);
      }
    }
  } catch (const ullage::CommError& error) {
    std::printf("ended: %s\n", error.what());
    return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto comm = Connect(PlaceFromEnvironment(), std::chrono::seconds(4));
    return argc == 2 && std::strcmp(argv[1], "cut") == 0 ? UntilCut(*comm) : Agree(*comm);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
