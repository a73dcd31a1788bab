#include "tiers/host_arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kOddSize = 37 * kMiB + 5000;  // far from a power of two

// By walking the page tables: the counters in /proc/self/statm are off by pages for each core.
std::int64_t ResidentBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == "Rss:" && file >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "no resident size";
  return 0;
}

std::int64_t PresentPages(const HostArena& arena) {
  std::vector<unsigned char> present(static_cast<std::size_t>(arena.size() / kPage));
  EXPECT_EQ(::mincore(arena.data(), static_cast<std::size_t>(arena.size()), present.data()), 0);
  return std::ranges::count_if(present, [](unsigned char page) { return (page & 1) != 0; });
}

// The flags that the kernel keeps for the mapping that begins with the arena, "" if none does.
std::string MappingFlags(const HostArena& arena) {
  std::ifstream file("/proc/self/smaps");
  const std::string start = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(arena.data()));
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    found = found || line.starts_with(start);
    if (found && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

TEST(HostArena, TakesExactlyThePlannedPagesAndGivesThemBack) {
  const std::int64_t before = ResidentBytes();
  {
    HostArena arena(kOddSize);
    EXPECT_EQ(arena.size(), 37 * kMiB + 2 * kPage);
    EXPECT_EQ(PresentPages(arena), arena.size() / kPage);
    EXPECT_GE(ResidentBytes() - before, arena.size());
    EXPECT_LE(ResidentBytes() - before, arena.size() + kMiB);
    EXPECT_EQ(std::ranges::count(arena.data(), arena.data() + arena.size(), std::byte{0}),
              arena.size());
  }
  EXPECT_LE(ResidentBytes() - before, kMiB);
}

TEST(HostArena, IsPopulatedByAllThreadsTogether) {
  HostArenaOptions options;
  options.threads = 3;
  HostArena arena(200 * kMiB + kPage, options);
  EXPECT_EQ(PresentPages(arena), arena.size() / kPage);
}

TEST(HostArena, AsksForHugePagesAndStartsWhereOneCan) {
  HostArena arena(kOddSize);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.data()) % (2 * kMiB), 0u);
  if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    EXPECT_TRUE(Contains(MappingFlags(arena) + " ", " hg ")) << MappingFlags(arena);
  }
}

TEST(HostArena, SmallerThanAHugePageIsStillWhole) {
  HostArena arena(1);
  EXPECT_EQ(arena.size(), kPage);
  arena.data()[kPage - 1] = std::byte{1};
}

TEST(HostArena, OfNoBytesHoldsNothing) {
  LogLines log;
  HostArenaOptions options;
  options.pin = [](void*, std::size_t) -> std::string { return "called"; };
  HostArena arena(0, options);
  EXPECT_EQ(arena.data(), nullptr);
  EXPECT_TRUE(log.warnings().empty());
}

TEST(HostArena, PinsAllOfItAndUnpinsItOnceAfterMoves) {
  std::vector<std::pair<void*, std::size_t>> pinned;
  std::vector<std::pair<void*, std::size_t>> unpinned;
  HostArenaOptions options;
  options.pin = [&](void* start, std::size_t bytes) {
    pinned.emplace_back(start, bytes);
    return std::string();
  };
  options.unpin = [&](void* start, std::size_t bytes) { unpinned.emplace_back(start, bytes); };
  LogLines log;
  std::byte* start = nullptr;
  {
    HostArena made(3 * kMiB, options);
    start = made.data();
    HostArena moved = std::move(made);
    made = std::move(moved);
    EXPECT_TRUE(made.pinned());
    EXPECT_EQ(made.data(), start);
    EXPECT_TRUE(unpinned.empty());
  }
  const std::vector<std::pair<void*, std::size_t>> whole = {
      {start, static_cast<std::size_t>(3 * kMiB)}};
  EXPECT_EQ(pinned, whole);
  EXPECT_EQ(unpinned, whole);
  EXPECT_TRUE(log.warnings().empty());
}

TEST(HostArena, IsKeptFromForkedChildrenWhenPinnedOnly) {
  HostArenaOptions options;
  options.pin = [](void*, std::size_t) { return std::string(); };
  EXPECT_TRUE(Contains(MappingFlags(HostArena(3 * kMiB, options)) + " ", " dc "));
  EXPECT_FALSE(Contains(MappingFlags(HostArena(3 * kMiB)) + " ", " dc "));
}

TEST(HostArena, StaysPageableWhenPinningIsRefusedAndSaysSoOnce) {
  LogLines log;
  HostArenaOptions options;
  options.name = "optimizer state";
  options.pin = [](void*, std::size_t) -> std::string { return "driver says no"; };
  options.unpin = [](void*, std::size_t) { ADD_FAILURE() << "unpinned what was never pinned"; };
  HostArena arena(3 * kMiB, options);
  EXPECT_FALSE(arena.pinned());
  arena.data()[arena.size() - 1] = std::byte{1};
  ASSERT_EQ(log.warnings().size(), 1u);
  for (const char* part : {"optimizer state", "3.00 MiB", "driver says no", "ulimit -l"}) {
    EXPECT_TRUE(Contains(log.warnings()[0], part)) << log.warnings()[0];
  }
}

TEST(HostArena, ThatCannotFitIsRefusedBeforeAnythingIsTaken) {
  const std::int64_t before = ResidentBytes();
  const std::string message =
      MessageOf<OutOfMemoryError>([] { HostArena(100'000'000'000'000, {.name = "state"}); });
  for (const char* part : {"state: ", "100000000000000 bytes", "requested", "available",
                           "hint: ", "offload_optimizer"}) {
    EXPECT_TRUE(Contains(message, part)) << part << " in " << message;
  }
  EXPECT_LE(ResidentBytes() - before, kMiB);
}

TEST(HostArena, OfAnImpossibleSizeIsAFaultOfThePlan) {
  EXPECT_THROW(HostArena(-1), StateError);
  EXPECT_THROW(HostArena(INT64_MAX), StateError);
}

TEST(HostArena, OnANodeThatDoesNotExistIsRefused) {
  EXPECT_THROW(HostArena(kPage, {.numa_node = 1000}), ConfigError);
}

TEST(HostArena, GivesOutSpaceInTurnAndCountsWhatAlignmentCosts) {
  HostArena arena(3 * kPage);
  EXPECT_EQ(arena.Allocate(100, 1), 0);
  EXPECT_EQ(arena.Allocate(10, 64), 128);
  EXPECT_EQ(arena.used(), 138);
  EXPECT_EQ(arena.padding(), 28);
  EXPECT_EQ(arena.Allocate(kPage), kPage);  // a page is the default
  EXPECT_EQ(arena.padding(), 28 + kPage - 138);
  EXPECT_EQ(arena.Allocate(kPage), 2 * kPage);
  EXPECT_EQ(arena.used(), arena.size());
  EXPECT_EQ(arena.Allocate(0), arena.size());
}

TEST(HostArena, RefusesWhatThePlanDidNotCountAndStaysAsItWas) {
  HostArena arena(2 * kPage, {.name = "weights"});
  arena.Allocate(kPage + 1);
  const std::string message = MessageOf<StateError>([&] { arena.Allocate(1); });
  EXPECT_TRUE(Contains(message, "weights: 1 bytes aligned to 4096")) << message;
  EXPECT_TRUE(Contains(message, "4097 of 8192 bytes are given out")) << message;
  EXPECT_THROW(arena.Allocate(-1), StateError);
  EXPECT_THROW(arena.Allocate(1, 3), StateError);
  EXPECT_THROW(arena.Allocate(1, 0), StateError);
  EXPECT_THROW(arena.Allocate(INT64_MAX, 1), StateError);
  EXPECT_EQ(arena.used(), kPage + 1);
  EXPECT_EQ(arena.padding(), 0);
  EXPECT_EQ(arena.Allocate(kPage - 1, 1), kPage + 1);
}

}  // namespace
}  // namespace ullage::tiers
