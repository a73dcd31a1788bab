// One rank alone, and ranks that do not exist.
#include <gtest/gtest.h>

#include <thread>

#include "comm/fault_comm.h"
#include "comm/ranks.h"

namespace ullage::comm {
namespace {

TEST(SingleComm, IsTheIdentity) {
  auto comm = MakeSingleComm();
  std::vector<std::int64_t> values{5, -2};
  comm->AllReduceSum(values, 0);
  comm->AllReduceMin(values, 0);
  comm->AllReduceMax(values, 0);
  EXPECT_EQ(values, (std::vector<std::int64_t>{5, -2}));
  std::vector<std::int64_t> received(2);
  comm->AllToAll(AsBytes(values), AsBytes(received), 16, 0);
  EXPECT_EQ(received, values);
  EXPECT_TRUE(comm->AllLocal());
}

TEST(SingleComm, ItsWindowReadsWhatWasWritten) {
  auto comm = MakeSingleComm();
  auto window = comm->CreateWindow(10'000, 2);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window->data()) % 4096, 0u);
  EXPECT_EQ(window->data()[9'999], std::byte{0});
  window->data()[9'999] = std::byte{17};
  window->Signal(1, 3);
  std::byte got{};
  window->Read(0, 1, 3, 9'999, std::span(&got, 1), "the byte");
  EXPECT_EQ(got, std::byte{17});
  EXPECT_EQ(window->Peer(0), window->data());
  EXPECT_THROW(window->Read(0, 1, 3, 10'000, std::span(&got, 1), "past the end"), ConfigError);
}

TEST(SingleComm, WaitsForAWordThatAnotherThreadRaises) {
  auto comm = MakeSingleComm();
  auto window = comm->CreateWindow(0, 1);
  std::thread raiser([&] {
    std::this_thread::sleep_for(milliseconds(30));
    window->Signal(0, 1);
  });
  window->Wait(0, 0, 1, "the raiser");
  EXPECT_EQ(window->Peek(0, 0), 1u);
  raiser.join();
}

TEST(SingleComm, AbortStopsWhatFollows) {
  auto comm = MakeSingleComm();
  comm->Abort("the disk is full");
  const std::string message = MessageOf([&] { comm->Barrier(0); });
  EXPECT_NE(message.find("the disk is full"), std::string::npos) << message;
}

TEST(FakeComm, ReturnsAtOnceAndHoldsNothing) {
  auto comm = MakeFakeComm(2, 8);
  EXPECT_EQ(comm->rank(), 2);
  EXPECT_EQ(comm->world_size(), 8);
  std::vector<std::int32_t> mine{11}, all(8);
  comm->AllGather(AsBytes(mine), AsBytes(all), 0);
  EXPECT_EQ(all, std::vector<std::int32_t>(8, 11));
  auto window = comm->CreateWindow(std::int64_t{1} << 45, 4);  // 32 TiB: nothing is held
  EXPECT_EQ(window->bytes(), std::int64_t{1} << 45);
  EXPECT_EQ(window->data(), nullptr);
  EXPECT_EQ(window->Peer(5), nullptr);
  std::vector<std::int32_t> kept{123};
  window->Read(5, 3, 99, 0, AsBytes(kept), "nothing");
  EXPECT_EQ(kept[0], 123);
  EXPECT_THROW(MakeFakeComm(8, 8), ConfigError);
}

TEST(FaultComm, ThrowsAtTheChosenCall) {
  using Entry = FaultPlan::Entry;
  auto comm = MakeFaultComm(MakeSingleComm(), {{{Entry::Call::kCollective, 2, Fault::kThrow}}});
  comm->Barrier(0);
  comm->Barrier(0);
  EXPECT_NE(MessageOf([&] { comm->Barrier(0); }).find("injected fault at call 2"),
            std::string::npos);
}

TEST(FaultComm, SkipsReadsAndSignals) {
  using Entry = FaultPlan::Entry;
  auto comm = MakeFaultComm(MakeSingleComm(), {{{Entry::Call::kSignal, 0, Fault::kSkip},
                                                {Entry::Call::kRead, 1, Fault::kSkip}}});
  auto window = comm->CreateWindow(1, 1);
  window->data()[0] = std::byte{5};
  window->Signal(0, 1);
  EXPECT_EQ(window->Peek(0, 0), 0u);
  window->Signal(0, 2);
  EXPECT_EQ(window->Peek(0, 0), 2u);
  std::byte got{};
  window->Read(0, 0, 2, 0, std::span(&got, 1), "first");
  EXPECT_EQ(got, std::byte{5});
  got = std::byte{0};
  window->Read(0, 0, 2, 0, std::span(&got, 1), "skipped");
  EXPECT_EQ(got, std::byte{0});
}

}  // namespace
}  // namespace ullage::comm
