#include "data/sampler.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "data/random.h"
#include "ullage/error.h"

namespace ullage::data {
namespace {

std::vector<std::int64_t> SomeLengths(std::int64_t count) {
  std::vector<std::int64_t> lengths;
  Random random(3, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    lengths.push_back(2 + static_cast<std::int64_t>(random.Below(120)));
  }
  return lengths;
}

// All records of an epoch in the order of steps and micro-batches.
std::vector<std::int64_t> Flat(const EpochOrder& order) {
  std::vector<std::int64_t> all;
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    for (std::int64_t j = 0; j < order.micro_batches_per_step(); ++j) {
      const auto records = order.MicroBatch(step, j);
      all.insert(all.end(), records.begin(), records.end());
    }
  }
  return all;
}

std::string Hash(const std::vector<std::int64_t>& order) {
  Sha256 sha;
  sha.Update(order.data(), order.size() * sizeof(order[0]));
  return sha.HexDigest().substr(0, 16);
}

// The padded positions over the real ones, as the loader would pad.
double PaddingShare(const EpochOrder& order, const std::vector<std::int64_t>& lengths) {
  std::int64_t real = 0, all = 0;
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    for (std::int64_t j = 0; j < order.micro_batches_per_step(); ++j) {
      std::int64_t longest = 0;
      for (const std::int64_t record : order.MicroBatch(step, j)) {
        real += lengths[static_cast<std::size_t>(record)];
        longest = std::max(longest, lengths[static_cast<std::size_t>(record)]);
      }
      all += longest * static_cast<std::int64_t>(order.MicroBatch(step, j).size());
    }
  }
  return 1 - static_cast<double>(real) / static_cast<double>(all);
}

TEST(Random, GivesThePublishedNumbers) {
  std::uint64_t state = 1234567;  // the test vector that accompanies SplitMix64
  EXPECT_EQ(SplitMix64(state), 6457827717110365317u);
  EXPECT_EQ(SplitMix64(state), 3203168211198807973u);
  Random a(1, 0), b(1, 1), c(1, 0);
  const std::uint64_t first = a.Next();
  EXPECT_NE(first, b.Next());
  EXPECT_EQ(first, c.Next());
}

TEST(Random, BelowIsEvenAndInRange) {
  Random random(5, 0);
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) ++counts[random.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
}

TEST(Sampler, EveryRecordComesOnceAnEpoch) {
  for (bool group : {true, false}) {
    for (bool shuffle : {true, false}) {
      for (std::int64_t records : {16, 17, 31, 32, 1000, 1007}) {
        const Sampler sampler(SomeLengths(records), {.train_batch = 16,
                                                     .micro_batch = 4,
                                                     .seed = 1,
                                                     .shuffle = shuffle,
                                                     .group_by_length = group,
                                                     .window_steps = 5});
        for (std::int64_t epoch : {0, 1, 7}) {
          std::vector<std::int64_t> all = Flat(sampler.Order(epoch));
          std::vector<std::int64_t> expected(static_cast<std::size_t>(records));
          std::iota(expected.begin(), expected.end(), 0);
          std::sort(all.begin(), all.end());
          EXPECT_EQ(all, expected) << records << " group " << group << " shuffle " << shuffle;
        }
      }
    }
  }
}

TEST(Sampler, TheOrderIsTheSameOnEveryMachine) {
  const SamplerOptions options{.train_batch = 32, .micro_batch = 8, .seed = 42};
  const Sampler sampler(SomeLengths(10'000), options);
  EXPECT_EQ(Hash(Flat(sampler.Order(0))), "3924c72f4277880b");
  EXPECT_EQ(Hash(Flat(sampler.Order(1))), "eaac19c59d1e57b5");
  EXPECT_EQ(Hash(Flat(Sampler(SomeLengths(10'000), options).Order(0))), "3924c72f4277880b");
}

TEST(Sampler, SeedAndEpochChangeTheOrder) {
  SamplerOptions options{.train_batch = 8, .micro_batch = 4, .seed = 1};
  const auto first = Flat(Sampler(SomeLengths(200), options).Order(0));
  EXPECT_NE(first, Flat(Sampler(SomeLengths(200), options).Order(1)));
  options.seed = 2;
  EXPECT_NE(first, Flat(Sampler(SomeLengths(200), options).Order(0)));
}

TEST(Sampler, WithoutShufflingAndGroupingTheFileIsReadInOrder) {
  const Sampler sampler(
      SomeLengths(10),
      {.train_batch = 4, .micro_batch = 2, .shuffle = false, .group_by_length = false});
  const EpochOrder order = sampler.Order(3);
  EXPECT_EQ(Flat(order), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(order.MicroBatch(1, 1)[0], 6);
}

TEST(Sampler, GroupingByLengthCutsThePadding) {
  const auto lengths = SomeLengths(6400);
  SamplerOptions options{.train_batch = 32, .micro_batch = 16, .seed = 1};
  const double grouped = PaddingShare(Sampler(lengths, options).Order(0), lengths);
  options.group_by_length = false;
  const double plain = PaddingShare(Sampler(lengths, options).Order(0), lengths);
  EXPECT_LT(grouped, 0.02);
  EXPECT_GT(plain, 0.40);
}

TEST(Sampler, MicroBatchesOfAStepRunFromLongToShort) {
  const auto lengths = SomeLengths(640);
  const Sampler sampler(lengths, {.train_batch = 32, .micro_batch = 4, .seed = 1});
  const EpochOrder order = sampler.Order(0);
  for (std::int64_t step = 0; step < order.steps(); ++step) {
    for (std::int64_t j = 1; j < order.micro_batches_per_step(); ++j) {
      EXPECT_GE(lengths[static_cast<std::size_t>(order.MicroBatch(step, j - 1).back())],
                lengths[static_cast<std::size_t>(order.MicroBatch(step, j).front())]);
    }
  }
}

TEST(Sampler, AnIncompleteLastStepIsSpreadEvenlyOrDropped) {
  SamplerOptions options{.train_batch = 16, .micro_batch = 4, .seed = 1};
  const auto sizes = [&](std::int64_t records) {
    const EpochOrder order = Sampler(SomeLengths(records), options).Order(0);
    std::vector<std::size_t> result;
    for (int j = 0; j < 4; ++j) result.push_back(order.MicroBatch(order.steps() - 1, j).size());
    return result;
  };
  EXPECT_EQ(sizes(32 + 9), (std::vector<std::size_t>{3, 2, 2, 2}));
  EXPECT_EQ(sizes(32 + 2), (std::vector<std::size_t>{1, 1, 0, 0}));
  EXPECT_EQ(sizes(32), (std::vector<std::size_t>{4, 4, 4, 4}));
  EXPECT_EQ(Sampler(SomeLengths(41), options).steps_per_epoch(), 3);
  options.drop_last = true;
  const Sampler dropping(SomeLengths(41), options);
  EXPECT_EQ(dropping.steps_per_epoch(), 2);
  EXPECT_EQ(Flat(dropping.Order(0)).size(), 32u);
  EXPECT_EQ(dropping.After(5), (Position{2, 1}));
}

TEST(Sampler, RefusesBatchesThatDoNotFit) {
  EXPECT_THROW(Sampler({}, {}), ConfigError);
  EXPECT_THROW(Sampler(SomeLengths(10), {.train_batch = 11}), ConfigError);
  EXPECT_THROW(Sampler(SomeLengths(10), {.train_batch = 5, .micro_batch = 2}), ConfigError);
  EXPECT_THROW(Sampler(SomeLengths(10), {.train_batch = 0}), ConfigError);
  EXPECT_THROW(Sampler(SomeLengths(10), {.train_batch = 4, .micro_batch = 0}), ConfigError);
}

}  // namespace
}  // namespace ullage::data
