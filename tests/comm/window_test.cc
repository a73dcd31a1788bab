// One-sided reads within a host.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "comm/ranks.h"

namespace ullage::comm {
namespace {

// The writer fills the region with a pattern of the version and raises word 0; each reader reads,
// checks and raises its own word, for which the writer waits before it writes again.
void PassVersionsAround(Comm& comm, int versions, std::int64_t bytes) {
  auto window = comm.CreateWindow(comm.rank() == 0 ? bytes : 0, 1);
  const auto count = static_cast<std::size_t>(bytes / 8);
  for (int version = 1; version <= versions; ++version) {
    const auto v = static_cast<std::uint64_t>(version);
    if (comm.rank() == 0) {
      auto* data = reinterpret_cast<std::uint64_t*>(window->data());
      for (std::size_t i = 0; i < count; ++i) data[i] = v * 1'000'003 + i;
      window->Signal(0, v);
      for (int r = 1; r < comm.world_size(); ++r) window->Wait(r, 0, v, "the readers");
    } else {
      std::vector<std::uint64_t> got(count);
      window->Read(0, 0, v, 0, AsBytes(got), "the pattern");
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i) wrong += got[i] != v * 1'000'003 + i;
      ASSERT_EQ(wrong, 0u) << "version " << version;
      window->Signal(0, v);
    }
  }
  comm.Barrier(0);
}

TEST(Window, ReadersNeverSeeTornOrOldBytesOnThreads) {
  OnThreads(3, [](Comm& comm) { PassVersionsAround(comm, 500, 40'000); });
}

TEST(Window, ReadersNeverSeeTornOrOldBytesOnProcesses) {
  OnProcesses(3, [](Comm& comm) { PassVersionsAround(comm, 500, 40'000); });
}

TEST(Window, EveryRankHasItsOwnSize) {
  OnThreads(3, [](Comm& comm) {
    auto window = comm.CreateWindow(comm.rank() * 5000, comm.rank() + 1);
    EXPECT_EQ(window->bytes(), comm.rank() * 5000);
    EXPECT_EQ(window->data() == nullptr, comm.rank() == 0);
    if (comm.rank() > 0) window->data()[comm.rank() * 5000 - 1] = std::byte(comm.rank());
    window->Signal(comm.rank(), 9);
    for (int r = 0; r < 3; ++r) {
      window->Wait(r, r, 9, "everybody");
      EXPECT_EQ(window->Peek(r, r), 9u);
      if (r > 0) {
        EXPECT_EQ(window->Peek(r, 0), 0u);
        std::byte last{};
        window->Read(r, r, 9, r * 5000 - 1, std::span(&last, 1), "the last byte");
        EXPECT_EQ(last, std::byte(r));
      }
      std::byte past{};
      EXPECT_THROW(window->Read(r, r, 0, r * 5000, std::span(&past, 1), "x"), ConfigError);
      EXPECT_THROW(window->Read(r, r, 0, -1, std::span(&past, 1), "x"), ConfigError);
      EXPECT_THROW(window->Peek(r, r + 1), ConfigError);
    }
    EXPECT_THROW(window->Peek(3, 0), ConfigError);
    comm.Barrier(0);
  });
}

TEST(Window, WordsNeverFall) {
  OnThreads(2, [](Comm& comm) {
    auto window = comm.CreateWindow(0, 1);
    window->Signal(0, 5);
    window->Signal(0, 3);
    EXPECT_EQ(window->Peek(comm.rank(), 0), 5u);
    comm.Barrier(0);
  });
}

TEST(Window, PeersAreMappedReadOnly) {
  OnProcesses(2, [](Comm& comm) {
    auto window = comm.CreateWindow(100'000, 1);
    EXPECT_TRUE(comm.AllLocal());
    std::memset(window->data(), 1 + comm.rank(), 100'000);
    window->Signal(0, 1);
    const int other = 1 - comm.rank();
    window->Wait(other, 0, 1, "the other");
    const std::byte* peer = window->Peer(other);
    ASSERT_NE(peer, nullptr);
    EXPECT_EQ(peer, window->Peer(other));
    EXPECT_EQ(peer[99'999], std::byte(1 + other));
    EXPECT_EQ(window->Peer(comm.rank()), window->data());
    EXPECT_EQ(window->Peer(2), nullptr);
    comm.Barrier(0);
    EXPECT_EXIT(*const_cast<volatile std::byte*>(peer) = std::byte{0},
                testing::KilledBySignal(SIGSEGV), "");
    comm.Barrier(1);
  });
}

std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST(Window, ReadingAddsNoResidentMemoryBeyondTheDestination) {
  OnProcesses(2, [](Comm& comm) {
    constexpr std::int64_t kBytes = 64 << 20;
    constexpr std::int64_t kMiB = 1 << 20;
    auto window = comm.CreateWindow(comm.rank() == 0 ? kBytes : 0, 1);
    if (comm.rank() == 0) {
      std::memset(window->data(), 3, kBytes);
      window->Signal(0, 1);
    } else {
      std::vector<std::byte> got(kMiB);
      window->Read(0, 0, 1, 0, got, "warm-up");
      const std::int64_t before = ResidentBytes();
      for (std::int64_t at = 0; at < kBytes; at += kMiB) {
        window->Read(0, 0, 1, at, got, "a piece");
        ASSERT_EQ(got[kMiB - 1], std::byte{3});
      }
      EXPECT_LT(ResidentBytes() - before, kMiB);
    }
    comm.Barrier(0);
  });
}

TEST(Window, ManyThreadsOfARankReadAtOnce) {
  OnThreads(2, [](Comm& comm) {
    constexpr std::int64_t kEach = 50'000;
    auto window = comm.CreateWindow(8 * kEach, 8);
    for (int part = 0; part < 8; ++part) {
      std::memset(window->data() + part * kEach, 10 * comm.rank() + part, kEach);
    }
    std::vector<std::thread> threads;
    for (int part = 0; part < 8; ++part) {
      threads.emplace_back([&, part] {
        const int other = 1 - comm.rank();
        std::vector<std::byte> got(kEach);
        window->Read(other, part, 1, part * kEach, got, "a part");
        EXPECT_EQ(got.front(), std::byte(10 * other + part));
        EXPECT_EQ(got.back(), std::byte(10 * other + part));
      });
    }
    for (int part = 7; part >= 0; --part) window->Signal(part, 1);
    for (std::thread& thread : threads) thread.join();
    comm.Barrier(0);
  });
}

TEST(Window, CanBeMadeAndDestroyedManyTimes) {
  OnThreads(2, [](Comm& comm) {
    for (int i = 0; i < 50; ++i) {
      auto window = comm.CreateWindow(4096, 1);
      window->data()[0] = std::byte(i);
      window->Signal(0, 1);
      std::byte got{};
      window->Read(1 - comm.rank(), 0, 1, 0, std::span(&got, 1), "a byte");
      EXPECT_EQ(got, std::byte(i));
    }
  });
}

TEST(Window, WhatWasSignalledCanBeReadAfterItsOwnerHasLeft) {
  auto comms = ConnectThreads(2, kLong);
  std::unique_ptr<Window> mine, theirs;
  RunOnThreads(2, [&](int rank) { (rank == 0 ? mine : theirs) = comms[rank]->CreateWindow(1, 1); });
  theirs->data()[0] = std::byte{8};
  theirs->Signal(0, 1);
  theirs.reset();
  comms[1].reset();
  std::byte got{};
  mine->Read(1, 0, 1, 0, std::span(&got, 1), "the legacy");
  EXPECT_EQ(got, std::byte{8});
  const std::string message = MessageOf([&] { mine->Wait(1, 0, 2, "more"); });
  EXPECT_NE(message.find("waiting for more of rank 1"), std::string::npos) << message;
  EXPECT_NE(message.find("has left the group"), std::string::npos) << message;
}

}  // namespace
}  // namespace ullage::comm
