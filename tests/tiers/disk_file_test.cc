#include "tiers/disk_file.h"

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <tuple>

#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

constexpr std::int64_t kKiB = 1024;

std::vector<std::byte> RandomBytes(std::int64_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

std::vector<std::byte> ReadAll(DiskFile& file) {
  std::vector<std::byte> data(static_cast<std::size_t>(file.bytes()));
  file.Wait(file.Read(0, data.data(), file.bytes()));
  return data;
}

struct Way {
  const char* name;
  bool threads;       // the pool and not the best backend
  bool direct;        // ask for O_DIRECT
  const char* place;  // "" for the folder of temporary files
};

class DiskFileWays : public testing::TestWithParam<Way> {
 protected:
  DiskFileWays() : folder_(Place()) {
    options_.direct = GetParam().direct;
    options_.operation_bytes = 64 * kKiB;
    if (GetParam().threads) options_.backend = MakeThreadBackend;
  }

  static std::string Place() {
    const std::string place = GetParam().place;
    if (!place.empty() && std::filesystem::is_directory(place)) return place;
    return std::filesystem::temp_directory_path();
  }

  LogLines log_;  // a refusal of io_uring or O_DIRECT is not what is tested here
  TemporaryFolder folder_;
  DiskOptions options_;
};

INSTANTIATE_TEST_SUITE_P(, DiskFileWays,
                         testing::Values(Way{"RingDirect", false, true, ""},
                                         Way{"RingCached", false, false, ""},
                                         Way{"ThreadsDirect", true, true, ""},
                                         Way{"ThreadsCached", true, false, ""},
                                         Way{"RingInMemory", false, true, "/dev/shm"}),
                         [](const auto& way) { return std::string(way.param.name); });

// Regions of whole blocks, in each of which a random part is written from or read to a random
// address, with many requests open at once. What the file holds must be what a plain buffer holds.
TEST_P(DiskFileWays, RandomTransfersMatchAPlainBuffer) {
  constexpr std::int64_t kRegion = 700 * kKiB;  // larger than staging, no power of two
  constexpr int kRegions = 12;
  constexpr std::int64_t kSize = kRegion * (kRegions - 1) + 12'345;
  DiskFile file(folder_.path(), 0, kSize, options_);
  std::vector<std::byte> expected(kSize);

  struct Open {
    DiskTicket ticket{};
    bool reads = false;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    std::int64_t at = 0;  // in memory
    std::vector<std::byte> memory;
  };
  std::vector<Open> open(kRegions);
  std::mt19937_64 random(GetParam().name[0] + 7);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  for (int round = 0; round < 12; ++round) {
    for (int region = 0; region < kRegions; ++region) {
      Open& o = open[static_cast<std::size_t>(region)];
      const std::int64_t size = region + 1 < kRegions ? kRegion : kSize - region * kRegion;
      const bool tiny = below(3) == 0;
      std::int64_t start = below(size);
      if (below(3) == 0) start = start / kDiskBlock * kDiskBlock;
      o.offset = region * kRegion + start;
      o.bytes = 1 + below(std::min<std::int64_t>(size - start, tiny ? 9000 : kRegion));
      if (below(3) == 0 && o.bytes > kDiskBlock) o.bytes = o.bytes / kDiskBlock * kDiskBlock;
      o.at = below(2) * below(200);
      o.reads = below(2) == 0;
      if (o.reads) {
        o.memory.assign(static_cast<std::size_t>(o.at + o.bytes), std::byte{0});
        o.ticket = file.Read(o.offset, o.memory.data() + o.at, o.bytes);
      } else {
        o.memory = RandomBytes(o.at + o.bytes, random());
        std::memcpy(expected.data() + o.offset, o.memory.data() + o.at,
                    static_cast<std::size_t>(o.bytes));
        o.ticket = file.Write(o.offset, o.memory.data() + o.at, o.bytes);
      }
    }
    for (const Open& o : open) {
      file.Wait(o.ticket);
      if (!o.reads) continue;
      ASSERT_EQ(std::memcmp(o.memory.data() + o.at, expected.data() + o.offset,
                            static_cast<std::size_t>(o.bytes)),
                0)
          << o.bytes << " bytes at " << o.offset << " in round " << round;
    }
  }
  EXPECT_EQ(ReadAll(file), expected);
}

TEST_P(DiskFileWays, ManyRequestsBeyondTheQueueDepthAllArrive) {
  constexpr std::int64_t kBytes = 16 * kKiB;
  constexpr int kRequests = 300;
  options_.queue_depth = 3;
  DiskFile file(folder_.path(), 0, kRequests * kBytes, options_);
  const std::vector<std::byte> data = RandomBytes(kRequests * kBytes, 1);
  std::vector<DiskTicket> tickets;
  for (int i = 0; i < kRequests; ++i) {
    tickets.push_back(file.Write(i * kBytes, data.data() + i * kBytes, kBytes));
  }
  for (const DiskTicket ticket : tickets) file.Wait(ticket);
  EXPECT_EQ(ReadAll(file), data);
}

TEST_P(DiskFileWays, RequestsOfAThreadThatEndedStillArrive) {
  constexpr std::int64_t kBytes = 1024 * kKiB;
  DiskFile file(folder_.path(), 0, kBytes, options_);
  const std::vector<std::byte> data = RandomBytes(kBytes, 2);
  DiskTicket ticket{};
  std::thread([&] { ticket = file.Write(0, data.data(), kBytes); }).join();
  file.Wait(ticket);
  EXPECT_EQ(ReadAll(file), data);
}

TEST_P(DiskFileWays, SeveralThreadsWaitWhileAnotherSubmits) {
  constexpr std::int64_t kBytes = 40 * kKiB;
  constexpr int kRequests = 64;
  DiskFile file(folder_.path(), 0, kRequests * kBytes, options_);
  const std::vector<std::byte> data = RandomBytes(kRequests * kBytes, 3);
  file.Wait(file.Write(0, data.data(), file.bytes()));

  std::vector<std::byte> read(data.size());
  std::vector<DiskTicket> tickets(kRequests);
  std::atomic<int> submitted = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      for (int i = 0; i < kRequests; ++i) {  // all wait for all
        while (submitted <= i) std::this_thread::yield();
        file.Wait(tickets[static_cast<std::size_t>(i)]);
        wrong += std::memcmp(read.data() + i * kBytes, data.data() + i * kBytes, kBytes) != 0;
      }
    });
  }
  for (int i = 0; i < kRequests; ++i) {
    tickets[static_cast<std::size_t>(i)] = file.Read(i * kBytes, read.data() + i * kBytes, kBytes);
    ++submitted;
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST(DiskFile, WritingPartOfABlockKeepsItsNeighbours) {
  TemporaryFolder folder;
  LogLines log;
  DiskFile file(folder.path(), 0, 3 * kDiskBlock);
  std::vector<std::byte> expected = RandomBytes(3 * kDiskBlock, 4);
  file.Wait(file.Write(0, expected.data(), file.bytes()));
  const std::vector<std::byte> part = RandomBytes(5000, 5);
  file.Wait(file.Write(3000, part.data(), 5000));
  std::memcpy(expected.data() + 3000, part.data(), 5000);
  EXPECT_EQ(ReadAll(file), expected);
}

TEST(DiskFile, DoneIsFalseUntilTheBytesAreThere) {
  TemporaryFolder folder;
  DiskScript script;
  DiskFile file(folder.path(), 0, 8192, {.direct = false, .backend = script.Maker()});
  std::vector<std::byte> data(8192);
  script.Hold();
  const DiskTicket ticket = file.Read(0, data.data(), 8192);
  EXPECT_FALSE(file.Done(ticket));
  script.Release();
  file.Wait(ticket);
  EXPECT_TRUE(file.Done(ticket));
}

TEST(DiskFile, StartsARequestAtOnceAndNeverMoreThanTheQueueDepth) {
  TemporaryFolder folder;
  DiskScript script;
  DiskFile file(folder.path(), 0, 10 * kDiskBlock,
                {.queue_depth = 4,
                 .direct = false,
                 .operation_bytes = kDiskBlock,
                 .backend = script.Maker()});
  std::vector<std::byte> data(10 * kDiskBlock);
  script.Hold();
  const DiskTicket first = file.Read(0, data.data(), kDiskBlock);
  EXPECT_EQ(script.held(), 1u);
  const DiskTicket rest = file.Read(kDiskBlock, data.data() + kDiskBlock, 9 * kDiskBlock);
  EXPECT_EQ(script.held(), 4u);
  script.Release();
  file.Wait(rest);
  file.Wait(first);
  EXPECT_EQ(script.operations(), 10);
  EXPECT_EQ(script.most_under_way(), 4);
}

TEST(DiskFile, EndsOnlyAfterWhatIsUnderWay) {
  TemporaryFolder folder;
  DiskScript script;
  std::vector<std::byte> data(8192, std::byte{9});
  std::thread releaser;
  {
    DiskFile file(folder.path(), 0, 8192, {.direct = false, .backend = script.Maker()});
    script.Hold();
    file.Read(0, data.data(), 8192);
    releaser = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT_EQ(data[0], std::byte{9});
      script.Release();
    });
  }
  EXPECT_EQ(data, std::vector<std::byte>(8192));
  EXPECT_TRUE(folder.names().empty());
  releaser.join();
}

TEST(DiskFile, RefusesRequestsThatShareABlockWithAnOpenOne) {
  TemporaryFolder folder;
  LogLines log;
  DiskFile file(folder.path(), 0, 8 * kDiskBlock);
  std::vector<std::byte> data(8 * kDiskBlock);
  const DiskTicket write = file.Write(100, data.data(), 50);
  const std::string message =
      MessageOf<StateError>([&] { file.Write(200, data.data() + 4096, 50); });
  EXPECT_TRUE(Contains(message, "writing 50 bytes at offset 200")) << message;
  EXPECT_TRUE(Contains(message, "writing 50 bytes at offset 100")) << message;
  EXPECT_THROW(file.Read(0, data.data() + 4096, 10), StateError);
  const DiskTicket next_block = file.Read(kDiskBlock, data.data() + 8192, 10);
  EXPECT_THROW(file.Write(kDiskBlock + 50, data.data(), 10), StateError);
  const DiskTicket second_reader = file.Read(kDiskBlock, data.data() + 12288, 20);
  for (const DiskTicket ticket : {write, next_block, second_reader}) file.Wait(ticket);
  file.Wait(file.Write(200, data.data(), 50));
}

TEST(DiskFile, RefusesWhatLiesOutside) {
  TemporaryFolder folder;
  LogLines log;
  DiskFile file(folder.path(), 0, 5000);
  std::vector<std::byte> data(8192);
  const std::string message = MessageOf<StateError>([&] { file.Read(4000, data.data(), 1001); });
  EXPECT_TRUE(Contains(message, "1001 bytes at offset 4000 are not inside its 5000")) << message;
  EXPECT_THROW(file.Read(-1, data.data(), 1), StateError);
  EXPECT_THROW(file.Write(0, data.data(), -1), StateError);
  EXPECT_THROW(file.Write(INT64_MAX, data.data(), INT64_MAX), StateError);
  EXPECT_THROW(file.Wait(DiskTicket{0}), StateError);
  file.Wait(file.Read(5000, data.data(), 0));
  file.Wait(file.Read(4000, data.data(), 1000));
}

TEST(DiskFile, RefusesOptionsOutOfRange) {
  TemporaryFolder folder;
  const auto with = [&](DiskOptions options) {
    return MessageOf<ConfigError>([&] { DiskFile(folder.path(), 0, 4096, options); });
  };
  EXPECT_TRUE(Contains(with({.queue_depth = 0}), "the queue depth is 0"));
  EXPECT_TRUE(Contains(with({.threads = 1000}), "the number of threads is 1000"));
  EXPECT_TRUE(Contains(with({.operation_bytes = 5000}), "the size of an operation is 5000"));
  EXPECT_THROW(DiskFile(folder.path(), 0, -1), StateError);
  EXPECT_TRUE(folder.names().empty());
}

TEST(DiskBackend, FallsBackToThreadsWithOneLineWhereARingIsRefused) {
  LogLines log;
  DiskBackendSettings settings;
  settings.queue_depth = 1 << 20;  // more than any kernel's ring holds
  const auto backend = MakeBestBackend(settings, [](void*, std::int64_t) {});
  EXPECT_STREQ(backend->name(), "threads");
  ASSERT_EQ(log.warnings().size(), 1u);
  EXPECT_TRUE(Contains(log.warnings()[0], "io_uring is refused here")) << log.warnings()[0];
  EXPECT_TRUE(Contains(log.warnings()[0], "4 threads")) << log.warnings()[0];
}

TEST(DiskBackend, IsTheRingUnlessALineSaysOtherwise) {
  LogLines log;
  const auto backend = MakeBestBackend({}, [](void*, std::int64_t) {});
  EXPECT_STREQ(backend->name(), log.warnings().empty() ? "io_uring" : "threads");
}

}  // namespace
}  // namespace ullage::tiers
