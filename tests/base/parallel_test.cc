#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ullage {
namespace {

// One worker again at the end, whatever a test did.
class ParallelTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetWorkers(GetParam()); }
  void TearDown() override { SetWorkers(1); }
};

TEST_P(ParallelTest, EveryElementIsVisitedOnce) {
  for (const std::int64_t numel : {0, 1, 63, 64, 65, 1000, 100'000}) {
    std::vector<std::atomic<int>> visits(static_cast<std::size_t>(numel));
    ParallelFor(5, 5 + numel, 64, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) ++visits[static_cast<std::size_t>(i - 5)];
    });
    for (const auto& count : visits) ASSERT_EQ(count, 1) << numel;
  }
}

TEST_P(ParallelTest, PartsStartAtMultiplesOfTheGrain) {
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> parts;
  ParallelFor(10, 1000, 128, [&](std::int64_t first, std::int64_t last) {
    std::lock_guard lock(mutex);
    parts.insert({first, last});
  });
  ASSERT_EQ(parts.size(), 8u);
  std::int64_t expected = 10;
  for (const auto& [first, last] : parts) {
    EXPECT_EQ(first, expected);
    EXPECT_EQ(last, std::min<std::int64_t>(first + 128, 1000));
    expected = last;
  }
}

TEST_P(ParallelTest, TheFirstExceptionReachesTheCallerAndTheNextLoopRuns) {
  const auto fail = [](std::int64_t first, std::int64_t) {
    if (first == 320) throw std::runtime_error("part at 320");
  };
  try {
    ParallelFor(0, 10'000, 64, fail);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "part at 320");
  }
  std::atomic<std::int64_t> sum = 0;
  ParallelFor(0, 1000, 10, [&](std::int64_t first, std::int64_t last) { sum += last - first; });
  EXPECT_EQ(sum, 1000);
}

TEST_P(ParallelTest, TwoCallersTakeTurns) {
  std::atomic<std::int64_t> sum = 0;
  const auto loops = [&] {
    for (int i = 0; i < 50; ++i) {
      ParallelFor(0, 1000, 16, [&](std::int64_t first, std::int64_t last) { sum += last - first; });
    }
  };
  std::thread other(loops);
  loops();
  other.join();
  EXPECT_EQ(sum, 100'000);
}

INSTANTIATE_TEST_SUITE_P(Workers, ParallelTest, testing::Values(1, 2, 5));

TEST(Parallel, TheNumberOfWorkersIsAtLeastOne) {
  SetWorkers(0);
  EXPECT_EQ(Workers(), 1);
  SetWorkers(3);
  EXPECT_EQ(Workers(), 3);
  SetWorkers(1);
  EXPECT_GE(UsableCores(), 1);
}

}  // namespace
}  // namespace ullage
