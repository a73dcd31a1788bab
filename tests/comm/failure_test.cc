// What the other ranks see when one diverges, dies, hangs or gives up.
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "comm/fault_comm.h"
#include "comm/ranks.h"

namespace ullage::comm {
namespace {

using Entry = FaultPlan::Entry;
using Call = FaultPlan::Entry::Call;
using std::chrono::steady_clock;

void ExpectContains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

void Advance(Comm& comm, std::uint32_t times) {
  for (std::uint32_t i = 0; i < times; ++i) comm.Barrier(i);
}

void Diverge(Comm& comm) {
  Advance(comm, 12);
  const auto start = steady_clock::now();
  const std::string message = MessageOf([&] {
    if (comm.rank() == 0) {
      std::vector<std::int64_t> values{1};
      comm.AllReduceSum(values, 7);
    } else {
      comm.Barrier(3);
    }
  });
  ExpectContains(message, {"diverged", "all_reduce_sum of item 7, position 12",
                           "barrier of item 3, position 12", "hint:"});
  EXPECT_LT(SecondsSince(start), kPromptSeconds);
  // The group is finished for good.
  ExpectContains(MessageOf([&] { comm.Barrier(0); }), {"the group was stopped", "diverged"});
}

TEST(Failure, DivergingRanksAllEndWithBothPositionsOnThreads) {
  OnThreads(4, Diverge);
}
TEST(Failure, DivergingRanksAllEndWithBothPositionsOnProcesses) {
  OnProcesses(2, Diverge);
}

TEST(Failure, DifferentSizesAreADivergenceToo) {
  OnThreads(2, [](Comm& comm) {
    std::vector<std::int64_t> values(comm.rank() + 1);
    ExpectContains(MessageOf([&] { comm.AllReduceSum(values, 7); }),
                   {"diverged", "(8 bytes, root 0)", "(16 bytes, root 0)"});
  });
}

TEST(Failure, ASkippedCollectiveIsFoundAtTheNext) {
  auto comms = ConnectThreads(2, kLong);
  comms[1] = MakeFaultComm(std::move(comms[1]), {{{Call::kCollective, 5, Fault::kSkip}}});
  RunOnThreads(2, [&](int rank) {
    const std::string message = MessageOf([&] { Advance(*comms[rank], 8); });
    ExpectContains(message, {"barrier of item 5, position 5", "barrier of item 6, position 5"});
  });
}

TEST(Failure, AKilledRankEndsTheOthersPromptly) {
  RunOnRanks(4,
             [](const Rank& rank) {
               auto comm = MakeFaultComm(
                   ConnectRank(rank),
                   rank.rank == 2 ? FaultPlan{{{Call::kCollective, 6, Fault::kDie}}} : FaultPlan{});
               Advance(*comm, 6);
               const auto start = steady_clock::now();
               const std::string message = MessageOf([&] { comm->Barrier(77); });
               ExpectContains(message, {"at barrier of item 77, position 6", "rank 2 (process ",
                                        "has died; it was after barrier of item 5, position 5"});
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
             },
             std::chrono::seconds(30), {2});
}

TEST(Failure, ARankKilledInsideACollectiveEndsTheOthersPromptly) {
  RunOnRanks(4,
             [](const Rank& rank) {
               auto comm = ConnectRank(rank);
               std::vector<std::uint8_t> mine(8 << 20), all(mine.size() * 4);
               comm->Barrier(0);
               std::thread killer;
               if (rank.rank == 1) {
                 killer = std::thread([] {
                   std::this_thread::sleep_for(milliseconds(150));
                   std::raise(SIGKILL);
                 });
               }
               const auto start = steady_clock::now();
               const std::string message = MessageOf([&] {
                 for (std::uint32_t i = 0;; ++i) comm->AllGather(AsBytes(mine), AsBytes(all), i);
               });
               ExpectContains(message, {"at all_gather of item", "rank 1 (process ", "has died"});
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
             },
             std::chrono::seconds(30), {1});
}

TEST(Failure, ARankKilledWhileOthersWaitForItsWord) {
  RunOnRanks(2,
             [](const Rank& rank) {
               auto comm = ConnectRank(rank);
               auto window = comm->CreateWindow(100, 4);
               if (rank.rank == 1) std::raise(SIGKILL);
               const auto start = steady_clock::now();
               std::vector<std::byte> got(10);
               const std::string message =
                   MessageOf([&] { window->Read(1, 3, 5, 0, got, "weights of unit 3"); });
               ExpectContains(message, {"rank 0 waiting for weights of unit 3 of rank 1 (process ",
                                        "word 3 to reach 5", "has died"});
               EXPECT_LT(SecondsSince(start), kPromptSeconds);
             },
             std::chrono::seconds(30), {1});
}

TEST(Failure, AHangingRankEndsTheOthersWithinTheTimeout) {
  constexpr milliseconds kShort{700};
  auto comms = ConnectThreads(3, kShort);
  comms[1] = MakeFaultComm(std::move(comms[1]), {{{Call::kCollective, 2, Fault::kHang}}});
  RunOnThreads(3, [&](int rank) {
    const auto start = steady_clock::now();
    const std::string message = MessageOf([&] { Advance(*comms[rank], 3); });
    ExpectContains(message, {"at barrier of item 2, position 2", "did not come within 0.7 s",
                             "rank 1 after barrier of item 1, position 1"});
    EXPECT_LT(SecondsSince(start), kPromptSeconds);
  });
}

TEST(Failure, AWordThatIsNeverRaisedEndsTheWaitWithinTheTimeout) {
  auto comms = ConnectThreads(2, milliseconds(400));
  RunOnThreads(2, [&](int rank) {
    auto window = comms[rank]->CreateWindow(0, 1);
    window->Signal(0, 2);
    const auto start = steady_clock::now();
    const std::string message = MessageOf([&] { window->Wait(1 - rank, 0, 3, "step 3"); });
    ExpectContains(message,
                   {"waiting for step 3 of rank ", "not within 0.4 s", "the word stands at 2",
                    "positions: rank 0 after create_window of item 0, position 0"});
    EXPECT_LT(SecondsSince(start), kPromptSeconds);
  });
}

TEST(Failure, AbortWakesPeersAndThisRank) {
  auto comms = ConnectThreads(3, kLong);
  std::vector<std::unique_ptr<Window>> windows(3);
  RunOnThreads(3, [&](int rank) { windows[rank] = comms[rank]->CreateWindow(0, 1); });
  const auto start = steady_clock::now();
  std::thread aborter([&] {
    std::this_thread::sleep_for(milliseconds(100));
    comms[0]->Abort("the disk is full\nhint: buy another");
    comms[0]->Abort("a later reason");
  });
  RunOnThreads(3, [&](int rank) {
    const std::string message = MessageOf([&] {
      if (rank == 2) {
        comms[rank]->Barrier(4);
      } else {
        windows[rank]->Wait(1 - rank, 0, 1, "nothing");
      }
    });
    ExpectContains(message, {"the group was stopped: the disk is full"});
    EXPECT_EQ(message.find("buy another"), std::string::npos);
    EXPECT_EQ(message.find("later"), std::string::npos);
  });
  aborter.join();
  EXPECT_LT(SecondsSince(start), kPromptSeconds);
  windows.clear();
}

TEST(Failure, AbortReachesOtherProcesses) {
  OnProcesses(3, [](Comm& comm) {
    comm.Barrier(0);
    if (comm.rank() == 1) {
      comm.Abort("rank 1: no space left");
      return;
    }
    ExpectContains(MessageOf([&] { Advance(comm, 1'000'000); }), {"rank 1: no space left"});
  });
}

TEST(Failure, ARankThatThrowsFarFromAnyCollectiveEndsTheOthers) {
  OnThreads(2, [](Comm& comm) {
    comm.Barrier(0);
    if (comm.rank() == 1) return;  // its Comm is destroyed in good order
    ExpectContains(MessageOf([&] { comm.Barrier(1); }),
                   {"rank 1 (process ", "has left the group after barrier of item 0, position 0"});
  });
}

TEST(Failure, AnInjectedFaultStopsTheGroup) {
  auto comms = ConnectThreads(2, kLong);
  comms[0] = MakeFaultComm(std::move(comms[0]), {{{Call::kSignal, 0, Fault::kThrow}}});
  RunOnThreads(2, [&](int rank) {
    auto window = comms[rank]->CreateWindow(0, 1);
    const std::string message = MessageOf([&] {
      if (rank == 0) window->Signal(0, 1);
      window->Wait(0, 0, 1, "the signal");
    });
    ExpectContains(message, {"rank 0: injected fault at call 0"});
  });
}

}  // namespace
}  // namespace ullage::comm
