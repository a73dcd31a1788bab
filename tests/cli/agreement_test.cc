#include "cli/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "comm/connect.h"
#include "support/run_ranks.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

using ::testing::HasSubstr;

void OnRanks(int world_size, const std::function<void(comm::Comm&)>& body) {
  auto comms = comm::ConnectThreads(world_size, std::chrono::seconds(20));
  testsupport::RunOnThreads(world_size,
                            [&](int rank) { body(*comms[static_cast<std::size_t>(rank)]); });
}

TEST(Together, NothingHappensWhenAllRanksAreReady) {
  std::atomic<int> ran = 0;
  OnRanks(2, [&](comm::Comm& comm) { EXPECT_NO_THROW(Together(comm, [&] { ++ran; })); });
  EXPECT_EQ(ran, 2);
}

TEST(Together, OneRankTellsAMistakeThatAllMake) {
  OnRanks(2, [](comm::Comm& comm) {
    const auto fail = [&] { throw ConfigError("no such file", "name another"); };
    if (comm.rank() == 0) {
      EXPECT_THROW(Together(comm, fail), ConfigError);
    } else {
      EXPECT_THROW(Together(comm, fail), FailedElsewhere);
    }
  });
}

TEST(Together, TheFirstRankTellsTheMistakeOfAnother) {
  OnRanks(2, [](comm::Comm& comm) {
    const auto fail = [&] {
      if (comm.rank() == 1) throw ConfigError("no such file", "name another");
    };
    try {
      Together(comm, fail);
      ADD_FAILURE() << "rank " << comm.rank() << " went on";
    } catch (const FailedElsewhere&) {
      EXPECT_EQ(comm.rank(), 1);
    } catch (const Error& error) {
      EXPECT_EQ(comm.rank(), 0);
      EXPECT_THAT(error.what(), HasSubstr("rank 1: no such file"));
    }
  });
}

TEST(Together, NumbersArriveInTheOrderOfTheRanks) {
  OnRanks(2, [](comm::Comm& comm) {
    const std::int64_t mine[] = {comm.rank() * 10, comm.rank() * 10 + 1};
    EXPECT_EQ(FromAllRanks<std::int64_t>(comm, std::span<const std::int64_t>(mine), Item::kStep),
              (std::vector<std::int64_t>{0, 1, 10, 11}));
  });
}

}  // namespace
}  // namespace ullage::cli
