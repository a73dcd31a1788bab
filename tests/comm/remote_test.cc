// Ranks on different hosts, as far as they know: one machine split by ULLAGE_HOST_ID.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm/ranks.h"

namespace ullage::comm {
namespace {

// `hosts` hosts, over which the ranks are spread in order.
std::unique_ptr<Comm> ConnectSplit(const Rank& rank, int hosts, milliseconds timeout = kLong) {
  const int host = rank.rank * hosts / rank.world_size;
  setenv("ULLAGE_HOST_ID", ("host-" + std::to_string(host)).c_str(), 1);
  return ConnectRank(rank, timeout);
}

void CheckWindowsAndCollectives(Comm& comm) {
  const int rank = comm.rank(), size = comm.world_size();
  constexpr std::int64_t kBytes = 3'000'000;
  auto window = comm.CreateWindow(kBytes, 2);
  for (std::uint64_t version = 1; version <= 20; ++version) {
    std::memset(window->data(), static_cast<int>(version) * 10 + rank, kBytes);
    window->Signal(0, version);
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      std::vector<std::byte> got(1'000'001);
      window->Read(r, 0, version, 1'999'999, got, "the bytes");
      EXPECT_EQ(got.front(), std::byte(version * 10 + r));
      EXPECT_EQ(got.back(), std::byte(version * 10 + r));
    }
    window->Signal(1, version);
    for (int r = 0; r < size; ++r) window->Wait(r, 1, version, "the readers");
  }
  EXPECT_EQ(window->Peek((rank + 1) % size, 1), 20u);
  std::vector<std::int64_t> sum{rank};
  comm.AllReduceSum(sum, 9);
  EXPECT_EQ(sum[0], size * (size - 1) / 2);
}

TEST(Remote, WindowsAndCollectivesBetweenTwoHostsOfOneRank) {
  RunOnRanks(2, [](const Rank& rank) {
    auto comm = ConnectSplit(rank, 2);
    EXPECT_FALSE(comm->IsLocal(1 - rank.rank));
    EXPECT_FALSE(comm->AllLocal());
    auto window = comm->CreateWindow(10, 1);
    EXPECT_EQ(window->Peer(1 - rank.rank), nullptr);
    window.reset();
    CheckWindowsAndCollectives(*comm);
  });
}

TEST(Remote, WindowsAndCollectivesBetweenTwoHostsOfTwoRanks) {
  RunOnRanks(4, [](const Rank& rank) {
    auto comm = ConnectSplit(rank, 2);
    EXPECT_EQ(comm->IsLocal(1), rank.rank < 2);
    EXPECT_EQ(comm->IsLocal(2), rank.rank >= 2);
    CheckWindowsAndCollectives(*comm);
  });
}

TEST(Remote, ThreadsOfOneRankDoNotBlockEachOther) {
  RunOnRanks(2, [](const Rank& rank) {
    auto comm = ConnectSplit(rank, 2);
    auto window = comm->CreateWindow(8, 2);
    std::thread patient([&] { window->Wait(1 - rank.rank, 1, 1, "the late word"); });
    window->Signal(0, 1);
    std::byte got{};
    window->Read(1 - rank.rank, 0, 1, 0, std::span(&got, 1), "the early word");
    comm->Barrier(0);
    window->Signal(1, 1);
    patient.join();
    comm->Barrier(1);
  });
}

TEST(Remote, AWaitEndsPromptlyWhenTheWordIsRaised) {
  RunOnRanks(2, [](const Rank& rank) {
    auto comm = ConnectSplit(rank, 2);
    auto window = comm->CreateWindow(0, 1);
    comm->Barrier(0);
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t i = 1; i <= 200; ++i) {
      if (rank.rank == 0) window->Signal(0, i);
      window->Wait(1 - rank.rank, 0, i, "ping");
      if (rank.rank == 1) window->Signal(0, i);
    }
    EXPECT_LT(SecondsSince(start), kPromptSeconds);
    comm->Barrier(1);
  });
}

TEST(Remote, DivergenceNamesBothPositions) {
  RunOnRanks(4, [](const Rank& rank) {
    auto comm = ConnectSplit(rank, 2);
    comm->Barrier(0);
    const std::string message = MessageOf([&] { comm->Barrier(rank.rank == 3 ? 8 : 9); });
    EXPECT_NE(message.find("at barrier of item 8, position 1"), std::string::npos) << message;
    EXPECT_NE(message.find("at barrier of item 9, position 1"), std::string::npos) << message;
  });
}

TEST(Remote, AKilledRankEndsTheOthersPromptly) {
  RunOnRanks(4,
             [](const Rank& rank) {
               auto comm = ConnectSplit(rank, 2);
               const auto start = std::chrono::steady_clock::now();
               const std::string message = MessageOf([&] {
                 for (std::uint32_t i = 0;; ++i) {
                   comm->Barrier(i);
                   if (rank.rank == 3 && i == 5) std::raise(SIGKILL);
                 }
               });
               // The ranks of its own host see that it has died, the others that it is gone.
               EXPECT_NE(message.find("at barrier of item "), std::string::npos) << message;
               EXPECT_NE(message.find("rank 3 ("), std::string::npos) << message;
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
             },
             std::chrono::seconds(30), {3});
}

TEST(Remote, ARankKilledInsideACollectiveEndsTheOthersPromptly) {
  RunOnRanks(2,
             [](const Rank& rank) {
               auto comm = ConnectSplit(rank, 2);
               std::vector<std::uint8_t> mine(32 << 20), all(mine.size() * 2);
               comm->Barrier(0);
               if (rank.rank == 1) {
                 std::thread([] {
                   std::this_thread::sleep_for(milliseconds(200));
                   std::raise(SIGKILL);
                 }).detach();
               }
               const auto start = std::chrono::steady_clock::now();
               const std::string message = MessageOf([&] {
                 for (std::uint32_t i = 0;; ++i) comm->AllGather(AsBytes(mine), AsBytes(all), i);
               });
               EXPECT_NE(message.find("at all_gather of item "), std::string::npos) << message;
               EXPECT_NE(message.find("rank 1 ("), std::string::npos) << message;
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
             },
             std::chrono::seconds(30), {1});
}

TEST(Remote, AKilledOwnerEndsItsReaders) {
  RunOnRanks(2,
             [](const Rank& rank) {
               auto comm = ConnectSplit(rank, 2);
               auto window = comm->CreateWindow(10, 1);
               if (rank.rank == 1) {
                 std::this_thread::sleep_for(milliseconds(100));
                 std::raise(SIGKILL);
               }
               const auto start = std::chrono::steady_clock::now();
               std::vector<std::byte> got(10);
               const std::string message =
                   MessageOf([&] { window->Read(1, 0, 1, 0, got, "weights of unit 3"); });
               EXPECT_NE(message.find("waiting for weights of unit 3 of rank 1 (127.0.0.1:"),
                         std::string::npos)
                   << message;
               EXPECT_NE(message.find("closed the connection"), std::string::npos) << message;
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
             },
             std::chrono::seconds(30), {1});
}

TEST(Remote, AHangingOwnerEndsItsReadersWithinTheTimeout) {
  RunOnRanks(2,
             [](const Rank& rank) {
               auto comm = ConnectSplit(rank, 2, milliseconds(1500));
               auto window = comm->CreateWindow(10, 1);
               comm->Barrier(0);
               if (rank.rank == 1) {  // frozen, service thread and all, as behind a cut link
                 const pid_t frozen = getpid();
                 if (fork() == 0) {
                   usleep(4'000'000);
                   if (getppid() == frozen) kill(frozen, SIGKILL);
                   _exit(0);
                 }
                 std::raise(SIGSTOP);
               }
               std::this_thread::sleep_for(milliseconds(100));
               const auto start = std::chrono::steady_clock::now();
               std::vector<std::byte> got(10);
               const std::string message =
                   MessageOf([&] { window->Read(1, 0, 1, 0, got, "a unit"); });
               EXPECT_NE(message.find("does not answer"), std::string::npos) << message;
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
               EXPECT_GT(SecondsSince(start), 1);
             },
             std::chrono::seconds(30), {1});
}

TEST(Remote, AbortReachesRanksThatWait) {
  RunOnRanks(4, [](const Rank& rank) {
    auto comm = ConnectSplit(rank, 4);
    auto window = comm->CreateWindow(10, 1);
    if (rank.rank == 0) {
      std::this_thread::sleep_for(milliseconds(200));  // the others have begun to wait
      comm->Abort("rank 0: the disk is full");
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    // Rank 1 asks the rank that stopped the group; 2 and 3 ask each other and hear of it.
    const int whom = rank.rank == 1 ? 0 : 5 - rank.rank;
    const std::string message = MessageOf([&] { window->Wait(whom, 0, 1, "nothing"); });
    EXPECT_NE(message.find("the disk is full"), std::string::npos) << message;
    EXPECT_LT(SecondsSince(start), kPromptSeconds);
  });
}

}  // namespace
}  // namespace ullage::comm
