// The values that every collective gives, among threads and among processes.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "comm/socket.h"

namespace ullage::comm {
namespace {

void CheckEveryCollective(Comm& comm) {
  const int rank = comm.rank();
  const int size = comm.world_size();
  comm.Barrier(1);

  // Exact where a double would round: 2^60 + 1 + rank.
  const std::int64_t big = std::int64_t{1} << 60;
  std::vector<std::int64_t> values{big + 1 + rank, -rank, 7};
  if (size <= 4) {
    auto sum = values;
    comm.AllReduceSum(sum, 2);
    EXPECT_EQ(sum[0], static_cast<std::int64_t>(static_cast<std::uint64_t>(size) *
                                                static_cast<std::uint64_t>(big + 1)) +
                          size * (size - 1) / 2);
    EXPECT_EQ(sum[1], -size * (size - 1) / 2);
    EXPECT_EQ(sum[2], 7 * size);
  }
  auto low = values, high = values;
  comm.AllReduceMin(low, 3);
  comm.AllReduceMax(high, 3);
  EXPECT_EQ(low, (std::vector<std::int64_t>{big + 1, -(size - 1), 7}));
  EXPECT_EQ(high, (std::vector<std::int64_t>{big + size, 0, 7}));

  // 16-bit patterns, NaNs among them, pass unchanged.
  std::vector<std::uint16_t> mine{0x7fc1, 0xffff, static_cast<std::uint16_t>(rank)};
  std::vector<std::uint16_t> all(mine.size() * size);
  comm.AllGather(AsBytes(mine), AsBytes(all), 4);
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(all[3 * r], 0x7fc1);
    EXPECT_EQ(all[3 * r + 1], 0xffff);
    EXPECT_EQ(all[3 * r + 2], r);
  }

  const int root = size - 1;
  std::vector<std::int32_t> told(5, rank == root ? 42 : 0);
  comm.Broadcast(AsBytes(told), root, 5);
  EXPECT_EQ(told, std::vector<std::int32_t>(5, 42));

  std::vector<std::int32_t> send(2 * size), receive(2 * size);
  for (int r = 0; r < size; ++r) send[2 * r] = 100 * rank + r, send[2 * r + 1] = -1;
  comm.AllToAll(AsBytes(send), AsBytes(receive), 8, 6);
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(receive[2 * r], 100 * r + rank);
    EXPECT_EQ(receive[2 * r + 1], -1);
  }
}

void CheckEmptyOnes(Comm& comm) {
  comm.AllReduceSum({}, 1);
  comm.AllGather({}, {}, 2);
  comm.Broadcast({}, 0, 3);
  comm.AllToAll({}, {}, 0, 4);
  comm.Barrier(5);
}

TEST(Collectives, GiveTheRightValuesOnThreads) {
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE(size);
    OnThreads(size, CheckEveryCollective);
  }
}

TEST(Collectives, GiveTheRightValuesOnOneProcess) {
  OnProcesses(1, CheckEveryCollective);
}
TEST(Collectives, GiveTheRightValuesOnTwoProcesses) {
  OnProcesses(2, CheckEveryCollective);
}
TEST(Collectives, GiveTheRightValuesOnFourProcesses) {
  OnProcesses(4, CheckEveryCollective);
}

TEST(Collectives, AcceptNothingToDo) {
  for (const int size : {1, 3}) OnThreads(size, CheckEmptyOnes);
}

TEST(Collectives, CarryOddSizesAndLargeOnes) {
  OnThreads(3, [](Comm& comm) {
    for (const std::size_t bytes : {1u, 7u, 4097u, 5'000'001u}) {
      std::vector<std::uint8_t> mine(bytes), all(3 * bytes);
      for (std::size_t i = 0; i < bytes; ++i)
        mine[i] = static_cast<std::uint8_t>(i * 31 + comm.rank());
      comm.AllGather(AsBytes(mine), AsBytes(all), 1);
      std::size_t wrong = 0;
      for (int r = 0; r < 3; ++r) {
        for (std::size_t i = 0; i < bytes; ++i) {
          wrong += all[r * bytes + i] != static_cast<std::uint8_t>(i * 31 + r);
        }
      }
      EXPECT_EQ(wrong, 0u) << bytes;
    }
  });
}

TEST(Collectives, RefuseSpansThatDoNotFit) {
  OnThreads(2, [](Comm& comm) {
    std::vector<std::uint8_t> three(3), four(4);
    EXPECT_THROW(comm.AllGather(AsBytes(three), AsBytes(four), 0), ConfigError);
    EXPECT_THROW(comm.AllToAll(AsBytes(four), AsBytes(three), 2, 0), ConfigError);
    EXPECT_THROW(comm.Broadcast(AsBytes(three), 2, 0), ConfigError);
    EXPECT_THROW(comm.CreateWindow(-1, 1), ConfigError);
    comm.Barrier(0);  // the group is none the worse for it
  });
}

TEST(Collectives, AThousandInARowStayInStep) {
  OnThreads(2, [](Comm& comm) {
    std::int64_t total = 0;
    for (std::uint32_t i = 0; i < 1000; ++i) {
      std::vector<std::int64_t> value{i + comm.rank()};
      comm.AllReduceSum(value, i);
      total += value[0];
    }
    EXPECT_EQ(total, 1000 + 999 * 1000);
  });
}

TEST(Collectives, ARankThatLeavesFirstDoesNotDisturbTheOthers) {
  for (int round = 0; round < 20; ++round) {
    OnThreads(3, [](Comm& comm) {
      std::vector<std::uint8_t> bytes(300'000, comm.rank() == 0 ? 9 : 0);
      comm.Broadcast(AsBytes(bytes), 0, 1);
      EXPECT_EQ(bytes.back(), 9);
    });
  }
}

TEST(Connect, ARankThatLeavesAtOnceDoesNotDisturbTheOthers) {
  for (int round = 0; round < 10; ++round) {
    OnThreads(3, [](Comm& comm) { EXPECT_EQ(comm.world_size(), 3); });
  }
}

TEST(Connect, CanBeCalledAgainInTheSameProcess) {
  RunOnRanks(2, [](const Rank& rank) {
    for (int round = 0; round < 3; ++round) {
      auto comm = ConnectRank(rank);
      std::vector<std::int64_t> value{rank.rank + round};
      comm->AllReduceSum(value, 0);
      EXPECT_EQ(value[0], 1 + 2 * round);
    }
  });
}

// A port that is free now: rank 0 asks the system and tells the others through a file.
int AgreeOnPort(const Rank& rank) {
  const std::string path = rank.store_path + ".port";
  if (rank.rank == 0) {
    std::uint16_t port = 0;
    Listen("127.0.0.1", &port);
    std::ofstream(path + ".part") << port;
    std::filesystem::rename(path + ".part", path);
  }
  int port = 0;
  while (!(std::ifstream(path) >> port)) std::this_thread::sleep_for(milliseconds(5));
  return port;
}

TEST(Connect, MeetsOverTcp) {
  RunOnRanks(2, [](const Rank& rank) {
    const std::string store = "tcp:localhost:" + std::to_string(AgreeOnPort(rank));
    for (int round = 0; round < 2; ++round) {
      auto comm = Connect(
          {.rank = rank.rank, .world_size = 2, .local_rank = rank.rank, .store = store}, kLong);
      std::vector<std::int64_t> value{rank.rank + 1};
      comm->AllReduceSum(value, 0);
      EXPECT_EQ(value[0], 3);
      EXPECT_TRUE(comm->AllLocal());
    }
  });
}

TEST(Connect, ARankThatNobodyJoinsFailsWithinTheTimeout) {
  const auto start = std::chrono::steady_clock::now();
  const std::string path = testing::TempDir() + "lonely-" + std::to_string(getpid());
  const std::string message = MessageOf([&] {
    Connect({.rank = 0, .world_size = 2, .local_rank = 0, .store = "file:" + path},
            milliseconds(500));
  });
  EXPECT_NE(message.find("rank 0 of 2 could not meet the others at file:"), std::string::npos)
      << message;
  EXPECT_NE(message.find("hint:"), std::string::npos);
  EXPECT_LT(SecondsSince(start), kPromptSeconds);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace ullage::comm
