#include "data/prefetcher.h"

#include <atomic>
#include <chrono>
#include <memory>

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage::data {
namespace {

TEST(Prefetcher, GivesValuesInOrderThenEnds) {
  int next = 0;
  Prefetcher<int> prefetcher(
      [&]() -> std::optional<int> { return next < 100 ? std::optional(next++) : std::nullopt; }, 3);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(prefetcher.Next(), i);
  EXPECT_EQ(prefetcher.Next(), std::nullopt);
  EXPECT_EQ(prefetcher.Next(), std::nullopt);
}

TEST(Prefetcher, StaysWithinItsDepth) {
  std::atomic<int> made = 0;
  Prefetcher<int> prefetcher([&]() -> std::optional<int> { return ++made; }, 3);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (made < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(made, 3);
}

TEST(Prefetcher, AnErrorComesAfterTheValuesBeforeItAndStays) {
  int next = 0;
  Prefetcher<int> prefetcher(
      [&]() -> std::optional<int> {
        if (next == 2) throw IoError("the disk broke");
        return next++;
      },
      8);
  EXPECT_EQ(prefetcher.Next(), 0);
  EXPECT_EQ(prefetcher.Next(), 1);
  EXPECT_THROW(prefetcher.Next(), IoError);
  EXPECT_THROW(prefetcher.Next(), IoError);
}

TEST(Prefetcher, EndsAtAnyMoment) {
  for (int taken = 0; taken < 200; ++taken) {
    auto prefetcher =
        std::make_unique<Prefetcher<int>>([]() -> std::optional<int> { return 1; }, 2);
    for (int i = 0; i < taken % 5; ++i) EXPECT_EQ(prefetcher->Next(), 1);
    prefetcher.reset();
  }
}

}  // namespace
}  // namespace ullage::data
