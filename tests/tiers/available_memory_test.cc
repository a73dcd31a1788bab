#include "tiers/available_memory.h"

#include <filesystem>
#include <fstream>

#include "tiers/tiers_test_support.h"

namespace ullage::tiers {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// A root folder with the given files.
class FakeSystem {
 public:
  FakeSystem& With(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return *this;
  }
  AvailableMemory Find() const { return FindAvailableMemory(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

TEST(AvailableMemory, IsWhatTheHostHasWhereNoGroupLimitsIt) {
  FakeSystem system;
  system.With("/proc/meminfo", "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  500 kB\n")
      .With("/proc/self/cgroup", "0::/\n")
      .With("/sys/fs/cgroup/memory.max", "max\n")
      .With("/sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(system.Find().bytes, 500 * 1024);
  EXPECT_EQ(system.Find().bound, "MemAvailable of this host");
}

TEST(AvailableMemory, IsBoundByAParentGroupAndCountsItsPageCacheAsFree) {
  FakeSystem system;
  system.With("/proc/meminfo", "MemAvailable: 1048576 kB\n")
      .With("/proc/self/cgroup", "0::/slice/job/task\n")
      .With("/sys/fs/cgroup/slice/job/task/memory.max", "max\n")
      .With("/sys/fs/cgroup/slice/job/task/memory.current", "0\n")
      .With("/sys/fs/cgroup/slice/job/memory.max", std::to_string(100 * kMiB))
      .With("/sys/fs/cgroup/slice/job/memory.current", std::to_string(70 * kMiB))
      .With("/sys/fs/cgroup/slice/job/memory.stat",
            "anon 1\ninactive_file 10485760\nactive_file 1048576\n");
  EXPECT_EQ(system.Find().bytes, (100 - 70 + 11) * kMiB);
  EXPECT_EQ(system.Find().bound, "the memory limit of the control group /slice/job");
}

TEST(AvailableMemory, OfVersion1GroupsIsFoundAtTheMountWhenTheirPathIsNotMounted) {
  FakeSystem system;
  system.With("/proc/meminfo", "MemAvailable: 1048576 kB\n")
      .With("/proc/self/cgroup", "9:cpu:/docker/a\n4:memory:/docker/a\n0::/\n")
      .With("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(64 * kMiB))
      .With("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(60 * kMiB))
      .With("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\n");
  EXPECT_EQ(system.Find().bytes, 5 * kMiB);
  EXPECT_EQ(system.Find().bound, "the memory limit of the control group /");
}

TEST(AvailableMemory, IsNothingInAGroupThatIsOverItsLimit) {
  FakeSystem system;
  system.With("/proc/self/cgroup", "0::/\n")
      .With("/sys/fs/cgroup/memory.max", "100")
      .With("/sys/fs/cgroup/memory.current", "150");
  EXPECT_EQ(system.Find().bytes, 0);
}

TEST(AvailableMemory, IsUnboundWhereTheSystemTellsNothing) {
  EXPECT_EQ(FakeSystem().Find().bytes, INT64_MAX);
}

}  // namespace
}  // namespace ullage::tiers
