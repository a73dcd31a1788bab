// What strangers and broken peers can do to the service: nothing.
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <mutex>
#include <random>
#include <thread>

#include "base/log.h"
#include "comm/ranks.h"
#include "comm/remote_peer.h"
#include "comm/service.h"

namespace ullage::comm {
namespace {

constexpr Token kToken{111, 222};
const Tick kNoTick = [] {};

Clock::time_point Soon() {
  return Clock::now() + std::chrono::seconds(5);
}

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() : memory_(std::make_shared<WindowMemory>(1000, 3, 7, false)) {
    SetLogSink([this](LogLevel, std::string_view, std::string_view line) { logged_ += line; });
    service_.AddWindow(5, memory_);
    for (int i = 0; i < 1000; ++i) memory_->data()[i] = std::byte(i % 251);
    memory_->Raise(1, 4);
  }
  ~ServiceTest() override { SetLogSink({}); }

  static Request Read(std::uint64_t window, std::uint32_t word, std::uint64_t at_least,
                      std::int64_t offset, std::int64_t bytes) {
    Request request;
    request.ask = Ask::kRead;
    request.window = window;
    request.word = word;
    request.at_least = at_least;
    request.offset = offset;
    request.bytes = bytes;
    return request;
  }

  // A friend's read of ten bytes, which must work whatever strangers do.
  void ExpectServed() {
    std::vector<std::byte> got(10);
    const Reply reply = friend_.Call(Read(5, 1, 4, 990, 10), got, Soon(), kNoTick);
    EXPECT_EQ(reply.outcome, Outcome::kReached);
    EXPECT_EQ(reply.value, 4u);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(got[i], std::byte((990 + i) % 251));
  }

  Descriptor Connect() { return ConnectTo(service_.endpoint(), Soon(), kNoTick); }

  // True when the service closes the connection, having answered `expected` bytes.
  static bool IsClosed(const Descriptor& fd, std::size_t expected = 0) {
    std::vector<char> answer(1 << 16);
    std::size_t total = 0;
    while (WaitFor(fd.get(), POLLIN, Clock::now() + std::chrono::seconds(2), kNoTick)) {
      const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), 0);
      if (got <= 0) return total == expected;
      total += static_cast<std::size_t>(got);
    }
    return false;
  }

  std::string logged_;
  StatusPage status_{};
  std::shared_ptr<WindowMemory> memory_;
  // What the service's thread was told, once it was.
  std::string Aborted() {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

  std::mutex mutex_;
  std::string aborted_;
  Service service_{"127.0.0.1", kToken, &status_, std::chrono::seconds(5),
                   [this](const std::string& reason) {
                     const std::lock_guard lock(mutex_);
                     aborted_ = reason;
                   }};
  RemotePeer friend_{1, 0, service_.endpoint(), kToken, std::chrono::seconds(5)};
};

TEST_F(ServiceTest, AnswersReadsWaitsAndPositions) {
  ExpectServed();
  std::vector<std::byte> got(10);
  Reply reply = friend_.Call(Read(5, 1, 5, 0, 10), got, Soon(), kNoTick);
  EXPECT_EQ(reply.outcome, Outcome::kNotYet);
  EXPECT_EQ(reply.value, 4u);

  status_.Enter({{Kind::kBroadcast, 6, 0}, 40, 2});
  reply = friend_.AskPosition(Soon(), kNoTick);
  EXPECT_EQ(reply.entered, 1u);
  EXPECT_EQ(reply.finished, 0u);
  EXPECT_TRUE(reply.record.Agrees({{Kind::kBroadcast, 6, 0}, 40, 2}));
}

TEST_F(ServiceTest, AWaiterIsAnsweredWhenTheWordIsRaised) {
  std::thread raiser([&] {
    std::this_thread::sleep_for(milliseconds(50));
    memory_->Raise(2, 9);
    service_.Notify();
  });
  Request request = Read(5, 2, 9, 0, 1);
  request.wait_ms = 4000;
  std::byte got{};
  const auto start = Clock::now();
  EXPECT_EQ(friend_.Call(request, std::span(&got, 1), Soon(), kNoTick).outcome, Outcome::kReached);
  EXPECT_LT(SecondsSince(start), kPromptSeconds);
  raiser.join();
}

TEST_F(ServiceTest, RangesOutsideTheWindowAreRefused) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const Request bad[] = {
      Read(5, 1, 0, 0, 1001), Read(5, 1, 0, 1000, 1),       Read(5, 1, 0, -1, 10),
      Read(5, 1, 0, 10, -1),  Read(5, 1, 0, kMost, kMost),  Read(5, 1, 0, 1, kMost),
      Read(5, 3, 0, 0, 1),    Read(5, 0xffffffff, 0, 0, 1), Read(6, 0, 0, 0, 1)};
  for (const Request& request : bad) {
    EXPECT_EQ(friend_.Call(request, {}, Soon(), kNoTick).outcome, Outcome::kRefused);
    ExpectServed();
  }
  Request unknown;
  unknown.ask = static_cast<Ask>(99);
  EXPECT_EQ(friend_.Call(unknown, {}, Soon(), kNoTick).outcome, Outcome::kRefused);
  service_.RemoveWindow(5);
  EXPECT_EQ(friend_.Call(Read(5, 1, 0, 0, 1), {}, Soon(), kNoTick).outcome, Outcome::kRefused);
}

TEST_F(ServiceTest, StrangersAreClosed) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    Descriptor fd = Connect();
    std::vector<std::uint32_t> noise(1 + random() % 2000);
    for (auto& word : noise) word = static_cast<std::uint32_t>(random());
    [[maybe_unused]] auto sent = ::send(fd.get(), noise.data(), noise.size() * 4, MSG_NOSIGNAL);
    const bool complete = noise.size() * 4 >= sizeof(Request);
    EXPECT_TRUE(!complete || IsClosed(fd));
  }
  Request wrong_token = Read(5, 1, 0, 0, 10);
  wrong_token.token = {kToken[0], kToken[1] + 1};
  Descriptor fd = Connect();
  ASSERT_EQ(::send(fd.get(), &wrong_token, sizeof(wrong_token), MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof(wrong_token)));
  EXPECT_TRUE(IsClosed(fd));
  ExpectServed();
  EXPECT_NE(logged_.find("does not belong to this run"), std::string::npos);
}

TEST_F(ServiceTest, SilentStrangersDoNotKeepReadersOut) {
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(Connect());
  ExpectServed();
  EXPECT_TRUE(IsClosed(silent.front()));  // the first has made room
}

TEST_F(ServiceTest, HalfARequestAndAHangUpDoNoHarm) {
  const Request request = Read(5, 1, 4, 0, 1000);
  for (const std::size_t part : {std::size_t{1}, std::size_t{8}, sizeof(Request) - 1}) {
    Descriptor fd = Connect();
    [[maybe_unused]] auto sent = ::send(fd.get(), &request, part, MSG_NOSIGNAL);
  }
  // A reader that goes away while its word is awaited, and one that never takes its bytes.
  Request waiting = Read(5, 1, 99, 0, 10);
  waiting.token = kToken;
  waiting.wait_ms = 3000;
  for (int i = 0; i < 5; ++i) {
    Descriptor fd = Connect();
    [[maybe_unused]] auto sent = ::send(fd.get(), &waiting, sizeof(waiting), MSG_NOSIGNAL);
  }
  ExpectServed();
}

TEST_F(ServiceTest, HearsThatTheGroupIsStopped) {
  Request lie;
  lie.ask = Ask::kAbort;
  std::strcpy(lie.text, "a lie");
  Descriptor fd = Connect();  // without the token
  [[maybe_unused]] auto sent = ::send(fd.get(), &lie, sizeof(lie), MSG_NOSIGNAL);
  EXPECT_TRUE(IsClosed(fd));
  ExpectServed();
  EXPECT_EQ(Aborted(), "");
  EXPECT_TRUE(friend_.TellAbort("rank 3: the disk is full", Soon()));
  // Another connection may be served before this one.
  for (int i = 0; i < 500 && Aborted().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(Aborted(), "rank 3: the disk is full");
}

TEST(Service, LeavesNoThreadAndNoDescriptorBehind) {
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
  };
  const auto descriptors = count("/proc/self/fd");
  const auto threads = count("/proc/self/task");
  for (int i = 0; i < 20; ++i) {
    StatusPage status{};
    Service service("127.0.0.1", kToken, &status, std::chrono::seconds(5),
                    [](const std::string&) {});
    RemotePeer peer(1, 0, service.endpoint(), kToken, std::chrono::seconds(5));
    peer.AskPosition(Soon(), kNoTick);
  }
  EXPECT_EQ(count("/proc/self/fd"), descriptors);
  EXPECT_EQ(count("/proc/self/task"), threads);
}

TEST(Service, ATenthGroupLeavesNoMoreBehindThanTheSecond) {
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
  };
  std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> counts;
  for (int i = 0; i < 10; ++i) {
    OnThreads(2, [](Comm& comm) { comm.CreateWindow(100, 1)->Signal(0, 1); });
    counts.emplace_back(count("/proc/self/fd"), count("/proc/self/task"));
  }
  EXPECT_EQ(counts[9], counts[1]);
}

}  // namespace
}  // namespace ullage::comm
