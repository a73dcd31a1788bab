// State on disk: what is read is what was written last, in parts of any size; and a disk that fails
// is told, and never trained on.
#include "optim/disk_state.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>

#include "optim/trainer.h"
#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::optim {
namespace {

using tiers::Contains;
using tiers::DiskAction;
using tiers::DiskOperation;
using tiers::MessageOf;
using tiers::Verdict;

constexpr std::int64_t kNumel = 1024;  // of each unit
constexpr int kUnits = 3;

plan::Plan PlanWithParts(std::int64_t part_numel) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = 1;
  settings.ullage.unit_size = 1;
  settings.precision = Precision::kBFloat16;
  settings.zero.offload_optimizer.device = OffloadDevice::kNvme;
  std::vector<layout::ParameterSpec> specs;
  for (int i = 0; i < kUnits; ++i) {
    specs.push_back({std::string("p") + std::to_string(i), {kNumel}, kNumel, DType::kBFloat16});
  }
  plan::Plan plan = plan::MakePlan(settings, std::move(specs), {});
  plan.disk_part_numel = part_numel;
  plan.disk_slot_bytes =
      static_cast<std::int64_t>(plan::kDiskSlots) * plan::MakeDiskLayout(plan).largest_bytes +
      plan::kDiskGrain;
  return plan;
}

// Three units of bf16 weights under Adam, on a disk that a test may script.
class OnDisk {
 public:
  explicit OnDisk(std::int64_t part_numel = 128, const tiers::DiskOptions& options = {},
                  std::optional<std::int64_t> limit = {})
      : plan(PlanWithParts(part_numel)),
        state(plan, 0, {folder.path(), "nvme_path", limit}, memory, options) {}

  // Adds what depends on unit and element to everything, as a step would.
  void Step() {
    state.Stream(
        [](const DiskState::Part& part) {
          const std::int64_t numel = part.end - part.begin;
          auto* const extension = reinterpret_cast<std::int16_t*>(part.extension);
          for (std::int64_t i = 0; i < numel; ++i) {
            const std::int64_t at = part.begin + i;
            part.moments[i] += static_cast<float>(at + part.unit);
            part.moments[numel + i] += static_cast<float>(2 * at);
            extension[i] = static_cast<std::int16_t>(extension[i] + at % 100 - part.unit);
          }
        },
        [this](int unit) { done.push_back(unit); });
  }

  template <typename T>
  std::vector<T> Read(int unit, DiskArray array, std::int64_t first = 0,
                      std::int64_t numel = kNumel) {
    std::vector<T> values(static_cast<std::size_t>(numel));
    state.Visit(unit, array, first, numel, DiskAccess::kRead,
                [&](std::int64_t at, std::int64_t count, const std::byte* bytes) {
                  std::memcpy(values.data() + (at - first), bytes,
                              static_cast<std::size_t>(count) * sizeof(T));
                });
    return values;
  }

  tiers::TemporaryFolder folder;
  plan::Plan plan;
  memory::Memory memory{memory::Place::kHost};
  DiskState state;
  std::vector<int> done;
};

void ExpectAfter(OnDisk& disk, int steps) {
  for (int unit = 0; unit < kUnits; ++unit) {
    const auto first = disk.Read<float>(unit, DiskArray::kFirstMoment);
    const auto second = disk.Read<float>(unit, DiskArray::kSecondMoment);
    const auto extension = disk.Read<std::int16_t>(unit, DiskArray::kExtension);
    for (std::int64_t i = 0; i < kNumel; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(first[at], static_cast<float>(steps * (i + unit)));
      ASSERT_EQ(second[at], static_cast<float>(steps * 2 * i));
      ASSERT_EQ(extension[at], steps * (i % 100 - unit));
    }
  }
}

TEST(DiskState, IsUpdatedInPartsOfAnySize) {
  for (const std::int64_t part_numel : {64, 128, 192, 1024}) {
    OnDisk disk(part_numel);
    ExpectAfter(disk, 0);  // it starts as zeros
    for (int step = 1; step <= 3; ++step) disk.Step();
    ExpectAfter(disk, 3);
    EXPECT_EQ(disk.done, (std::vector<int>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  }
}

TEST(DiskState, WhatIsWrittenBetweenStepsIsWhatTheNextOneFinds) {
  OnDisk disk;
  disk.Step();
  std::vector<float> stored(700);
  std::iota(stored.begin(), stored.end(), 10'003.0f);
  disk.state.StoreMoment(0, 1, 3, stored);
  disk.state.StoreMoment(0, 1, 0, std::vector<float>{10'000});
  disk.state.Visit(1, DiskArray::kExtension, 100, 300, DiskAccess::kChange,
                   [](std::int64_t, std::int64_t count, std::byte* bytes) {
                     auto* const values = reinterpret_cast<std::int16_t*>(bytes);
                     for (std::int64_t i = 0; i < count; ++i) ++values[i];
                   });
  disk.Step();
  const auto second = disk.Read<float>(0, DiskArray::kSecondMoment);
  const auto extension = disk.Read<std::int16_t>(1, DiskArray::kExtension);
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const bool written = i == 0 || (i >= 3 && i < 703);
    ASSERT_EQ(second[static_cast<std::size_t>(i)],
              static_cast<float>(written ? 10'000 + i + 2 * i : 4 * i))
        << i;
    ASSERT_EQ(extension[static_cast<std::size_t>(i)],
              2 * (i % 100 - 1) + (i >= 100 && i < 400 ? 1 : 0))
        << i;
  }
  std::vector<float> loaded(3);
  disk.state.LoadMoment(0, 1, 5, loaded);
  EXPECT_EQ(loaded, (std::vector<float>{10'015, 10'018, 10'021}));
}

TEST(DiskState, UnitsThatAreDoneCanBeReadAndWrittenWhileOthersAreUpdated) {
  OnDisk disk(64);
  std::vector<std::thread> visitors;
  disk.state.Stream([](const DiskState::Part& part) { part.moments[0] += 1; },
                    [&](int unit) {
                      visitors.emplace_back([&disk, unit] {
                        for (int i = 0; i < 20; ++i) {
                          disk.state.Visit(unit, DiskArray::kFirstMoment, 1, 900,
                                           DiskAccess::kChange,
                                           [](std::int64_t, std::int64_t count, std::byte* bytes) {
                                             auto* const values = reinterpret_cast<float*>(bytes);
                                             for (std::int64_t k = 0; k < count; ++k) {
                                               values[k] += 1;
                                             }
                                           });
                        }
                      });
                    });
  for (std::thread& visitor : visitors) visitor.join();
  for (int unit = 0; unit < kUnits; ++unit) {
    const auto values = disk.Read<float>(unit, DiskArray::kFirstMoment, 0, 66);
    EXPECT_EQ(values[0], 1);
    EXPECT_EQ(values[1], 20);
    EXPECT_EQ(values[64], 21);
  }
}

TEST(DiskState, ReadsAheadOfUpdatesAndWritesBehindThem) {
  tiers::DiskScript script;
  int reads = 0, writes = 0;
  OnDisk disk(64, {.direct = false, .backend = script.Maker()});
  script.verdict = [&](const DiskOperation& operation) {
    ++(operation.action == DiskAction::kRead ? reads : writes);
    return Verdict{};
  };
  const int parts = kUnits * kNumel / 64;
  int part = 0;
  disk.state.Stream(
      [&](const DiskState::Part&) {
        EXPECT_GE(reads, std::min(part + 3, parts));  // this one and two more
        EXPECT_EQ(writes, part);
        ++part;
      },
      [](int) {});
  EXPECT_EQ(part, parts);
  EXPECT_EQ(writes, parts);
  EXPECT_EQ(reads, parts + 4);  // the first of the next step are on their way
}

TEST(DiskState, BytesAreThoseOfThePlanAndTheFileGoesAtTheEnd) {
  tiers::TemporaryFolder folder;
  const plan::Plan plan = PlanWithParts(192);
  memory::Memory memory(memory::Place::kHost);
  {
    const DiskState state(plan, 0, {folder.path(), "nvme_path", {}}, memory);
    const plan::TagBytes disk = plan.BytesOfRank(0, plan::Tier::kDisk);
    EXPECT_EQ(memory.ledger().now(plan::Tier::kDisk), disk);
    const std::int64_t all = std::accumulate(disk.begin(), disk.end(), std::int64_t{0});
    EXPECT_EQ(all, kUnits * 6 * 4096);  // parts of 192 elements and 10 bytes each
    struct stat status {};
    ASSERT_EQ(::stat(state.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_size, all);
    EXPECT_GE(status.st_blocks * 512, all);  // no holes: a full disk is an error at the start
  }
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(memory.ledger().now(), plan::TagBytes{});
}

TEST(DiskState, NamesTheKeyOfAFolderThatCannotBeUsed) {
  const plan::Plan plan = PlanWithParts(128);
  memory::Memory memory(memory::Place::kHost);
  const auto message = [&](const std::string& folder) {
    return MessageOf<ConfigError>([&] {
      DiskState(plan, 0, {folder, "section.nvme_path", {}}, memory);
    });
  };
  EXPECT_TRUE(Contains(message("/no/such/folder"),
                       "section.nvme_path: \"/no/such/folder\" is not an existing folder"));
  EXPECT_TRUE(Contains(message("/etc/passwd"), "is not an existing folder"));
  EXPECT_TRUE(Contains(message(""), "section.nvme_path: state is to lie on disk, but no folder"));
  EXPECT_TRUE(Contains(message("/proc/self"), "/proc/self"));
}

TEST(DiskState, ALimitThatIsTooLowIsAnErrorWithBothNumbers) {
  const std::string message = MessageOf<ConfigError>([] { OnDisk(128, {}, 10'000); });
  EXPECT_TRUE(Contains(message, "ullage.disk.limit: 9.77 KiB for state on disk, but rank 0 needs "))
      << message;
  EXPECT_NO_THROW(OnDisk(128, {}, 1'000'000));
}

TEST(DiskState, ADiskThatIsTooSmallIsAnErrorBeforeTraining) {
  // A petabyte: no folder of a test has as much.
  plan::Plan plan = PlanWithParts(1 << 20);
  plan.units[0].unit.slice_numel = std::int64_t{1} << 47;
  plan.disk_part_numel = std::int64_t{1} << 47;
  plan.disk_slot_bytes = 0;
  memory::Memory memory(memory::Place::kHost);
  tiers::TemporaryFolder folder;
  const std::string message = MessageOf<IoError>([&] {
    DiskState(plan, 0, {folder.path(), "nvme_path", {}}, memory);
  });
  for (const char* part :
       {folder.path().c_str(), "requested for offloaded state", "free", "hint: free space there"}) {
    EXPECT_TRUE(Contains(message, part)) << message;
  }
  EXPECT_TRUE(folder.names().empty());
}

class FailingDiskState : public testing::TestWithParam<DiskAction> {};

TEST_P(FailingDiskState, EndsTheStepAndEveryLaterUseWithoutACheckpoint) {
  tiers::DiskScript script;
  OnDisk disk(128, {.direct = false, .backend = script.Maker()});
  disk.Step();
  script.verdict = [&](const DiskOperation& operation) {
    const bool hit = operation.action == GetParam() && operation.offset > 40'000;
    return Verdict{.error = hit ? (GetParam() == DiskAction::kRead ? EIO : ENOSPC) : 0};
  };
  const std::string message = MessageOf<IoError>([&] { disk.Step(); });
  EXPECT_TRUE(Contains(message, GetParam() == DiskAction::kRead ? "cannot read" : "cannot write"));
  EXPECT_TRUE(Contains(message, "neither that before the step nor that after")) << message;
  EXPECT_TRUE(Contains(message, "resume from the last checkpoint")) << message;
  script.verdict = [](const DiskOperation&) { return Verdict{}; };
  for (const std::function<void()>& use :
       {std::function<void()>([&] { disk.Step(); }),
        std::function<void()>([&] { disk.state.CheckIntact(); }),
        std::function<void()>([&] { disk.Read<float>(0, DiskArray::kFirstMoment); })}) {
    const std::string later = MessageOf<StateError>(use);
    EXPECT_TRUE(Contains(later, "the optimizer state on disk is neither")) << later;
    EXPECT_TRUE(Contains(later, "resume from the last checkpoint")) << later;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FailingDiskState,
                         testing::Values(DiskAction::kRead, DiskAction::kWrite));

TEST(DiskState, AReadThatFailsForAVisitorLosesNothing) {
  tiers::DiskScript script;
  OnDisk disk(128, {.direct = false, .backend = script.Maker()});
  disk.Step();
  script.verdict = [](const DiskOperation& operation) {
    return Verdict{.error = operation.action == DiskAction::kRead ? EIO : 0};
  };
  MessageOf<IoError>([&] { disk.Read<float>(2, DiskArray::kFirstMoment); });
  script.verdict = [](const DiskOperation&) { return Verdict{}; };
  disk.Step();
  ExpectAfter(disk, 2);
}

TEST(DiskState, AnUpdateThatThrowsLosesTheState) {
  OnDisk disk;
  EXPECT_THROW(
      disk.state.Stream([](const DiskState::Part&) { throw std::logic_error("mine"); }, [](int) {}),
      std::logic_error);
  EXPECT_TRUE(Contains(MessageOf<StateError>([&] { disk.Step(); }), "mine"));
}

}  // namespace
}  // namespace ullage::optim
