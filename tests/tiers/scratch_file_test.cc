#include "tiers/scratch_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>

#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

std::string NameOf(int rank, int number) {
  return "ullage-rank" + std::to_string(rank) + "-pid" + std::to_string(::getpid()) + "-" +
         std::to_string(number) + ".offload";
}

struct stat StatusOf(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ScratchFile, HasItsBlocksFromTheStartAndGoesWithItsOwner) {
  TemporaryFolder folder;
  {
    ScratchFile file(folder.path(), 3, 1'000'000, true);
    EXPECT_EQ(file.path(), folder.path() + "/" + NameOf(3, 0));
    EXPECT_EQ(file.bytes(), 1'003'520);  // 245 blocks
    const struct stat status = StatusOf(file.path());
    EXPECT_EQ(status.st_size, 1'003'520);
    EXPECT_GE(status.st_blocks * 512, 1'003'520);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_EQ(Contents(file.path()), std::string(1'003'520, '\0'));
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(ScratchFile, GoesWhenAnExceptionEndsItsOwner) {
  TemporaryFolder folder;
  try {
    ScratchFile file(folder.path(), 0, 4096, true);
    throw std::runtime_error("elsewhere");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(ScratchFile, OfTheSameRankTwiceAreTwoFiles) {
  TemporaryFolder folder;
  ScratchFile first(folder.path(), 0, 4096, false);
  ScratchFile second(folder.path(), 0, 4096, false);
  EXPECT_EQ(second.path(), folder.path() + "/" + NameOf(0, 1));
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(ScratchFile, DeletesWhatKilledRunsLeftAndNothingThatIsInUse) {
  TemporaryFolder folder;
  ScratchFile in_use(folder.path(), 0, 4096, false);
  const std::string stale = folder.path() + "/ullage-rank7-pid1-0.offload";
  const std::string other = folder.path() + "/ullage-rank7-pid1-0.offload.txt";
  const std::string link = folder.path() + "/ullage-rank8-pid1-0.offload";
  const std::string pipe = folder.path() + "/ullage-rank9-pid1-0.offload";
  std::ofstream(stale) << std::string(100'000, 'x');
  std::ofstream(other) << "keep";
  std::filesystem::create_symlink(other, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  LogLines log;
  ScratchFile file(folder.path(), 1, 4096, false);
  EXPECT_FALSE(std::filesystem::exists(stale));
  EXPECT_TRUE(std::filesystem::exists(in_use.path()));
  EXPECT_EQ(Contents(other), "keep");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::exists(pipe));
  ASSERT_EQ(log.others().size(), 1u);
  EXPECT_TRUE(Contains(log.others()[0], "deleted 1 file(s)")) << log.others()[0];
}

TEST(ScratchFile, TakesTheNameOfAStaleFileOfTheSameProcessNumber) {
  TemporaryFolder folder;
  std::ofstream(folder.path() + "/" + NameOf(0, 0)) << "old";
  LogLines log;
  ScratchFile file(folder.path(), 0, 4096, false);
  EXPECT_EQ(file.path(), folder.path() + "/" + NameOf(0, 0));
  EXPECT_EQ(Contents(file.path()), std::string(4096, '\0'));
}

TEST(ScratchFile, DoesNotDeleteAnotherFileThatTookItsName) {
  TemporaryFolder folder;
  std::string path;
  {
    ScratchFile file(folder.path(), 0, 4096, false);
    path = file.path();
    std::filesystem::remove(path);
    std::ofstream(path) << "mine";
  }
  EXPECT_EQ(Contents(path), "mine");
}

TEST(ScratchFile, LargerThanTheDiskNamesBothSizesAndLeavesNothing) {
  TemporaryFolder folder;
  struct statvfs status {};
  ASSERT_EQ(::statvfs(folder.path().c_str(), &status), 0);
  const std::int64_t bytes =
      static_cast<std::int64_t>(status.f_blocks * status.f_frsize) + (std::int64_t{1} << 40);
  const std::string message =
      MessageOf<IoError>([&] { ScratchFile(folder.path(), 0, bytes, true); });
  for (const char* part : {"requested", "free: No space left", "hint: "}) {
    EXPECT_TRUE(Contains(message, part)) << message;
  }
  EXPECT_TRUE(Contains(message, folder.path())) << message;
  EXPECT_TRUE(folder.names().empty());
}

TEST(ScratchFile, OnADiskThatFillsMeanwhileLeavesNothing) {
  TemporaryFolder folder;
  ScratchFileCalls calls = SystemScratchFileCalls();
  int pieces = 0;
  calls.allocate = [&](int, std::int64_t, std::int64_t) { return ++pieces == 2 ? ENOSPC : 0; };
  const std::string message = MessageOf<IoError>(
      [&] { ScratchFile(folder.path(), 0, (std::int64_t{1} << 30) + 1, true, calls); });
  EXPECT_TRUE(Contains(message, "1.00 GiB (1073745920 bytes) requested")) << message;
  EXPECT_TRUE(folder.names().empty());
}

TEST(ScratchFile, IsFilledWithZerosWhereTheFileSystemCannotAllocate) {
  TemporaryFolder folder;
  ScratchFileCalls calls = SystemScratchFileCalls();
  calls.allocate = [](int, std::int64_t, std::int64_t) { return EOPNOTSUPP; };
  ScratchFile file(folder.path(), 0, 3'000'000, true, calls);
  EXPECT_GE(StatusOf(file.path()).st_blocks * 512, file.bytes());
  EXPECT_EQ(Contents(file.path()), std::string(static_cast<std::size_t>(file.bytes()), '\0'));
}

TEST(ScratchFile, GoesOnWhenAllocatingIsInterrupted) {
  TemporaryFolder folder;
  ScratchFileCalls calls = SystemScratchFileCalls();
  int times = 0;
  calls.allocate = [&times, allocate = calls.allocate](int fd, std::int64_t at,
                                                       std::int64_t bytes) {
    return ++times < 3 ? EINTR : allocate(fd, at, bytes);
  };
  ScratchFile file(folder.path(), 0, 8192, false, calls);
  EXPECT_EQ(times, 3);
  EXPECT_EQ(StatusOf(file.path()).st_size, 8192);
}

TEST(ScratchFile, WithoutDirectTransfersSaysSoOnce) {
  TemporaryFolder folder;
  ScratchFileCalls calls = SystemScratchFileCalls();
  calls.set_direct = [](int) { return EINVAL; };
  LogLines log;
  ScratchFile file(folder.path(), 0, 8192, true, calls);
  EXPECT_FALSE(file.direct());
  EXPECT_EQ(file.memory_alignment(), 1);
  ASSERT_EQ(log.warnings().size(), 1u);
  EXPECT_TRUE(Contains(log.warnings()[0], "O_DIRECT")) << log.warnings()[0];
  EXPECT_TRUE(Contains(log.warnings()[0], file.path())) << log.warnings()[0];
}

TEST(ScratchFile, IsOpenForDirectTransfersExactlyWhenItSaysSo) {
  TemporaryFolder folder;
  LogLines log;
  for (const bool wanted : {true, false}) {
    ScratchFile file(folder.path(), 0, 8192, wanted);
    EXPECT_EQ((::fcntl(file.fd(), F_GETFL) & O_DIRECT) != 0, file.direct());
    EXPECT_EQ(log.warnings().size(), wanted && !file.direct() ? 1u : 0u);
    if (!wanted) {
      EXPECT_FALSE(file.direct());
    }
  }
}

TEST(ScratchFile, BeyondTheLimitOnFileSizesIsAnErrorAndNoSignal) {
  TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit lowered = before;
  lowered.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lowered), 0);
  const std::string message =
      MessageOf<IoError>([&] { ScratchFile(folder.path(), 0, 2 << 20, true); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(Contains(message, "ulimit -f")) << message;
  EXPECT_TRUE(folder.names().empty());
}

TEST(ScratchFile, InAFolderThatDoesNotExistNamesIt) {
  TemporaryFolder folder;
  const std::string message =
      MessageOf<IoError>([&] { ScratchFile(folder.path() + "/none", 0, 4096, true); });
  EXPECT_TRUE(Contains(message, folder.path() + "/none/ullage-rank0")) << message;
  EXPECT_TRUE(Contains(message, "No such file or directory")) << message;
}

}  // namespace
}  // namespace ullage::tiers
