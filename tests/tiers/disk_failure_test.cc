// DiskFile on a disk that fails: what is continued, what becomes an error, and what stays intact.
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>

#include "tiers/disk_file.h"
#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

constexpr std::int64_t kBytes = 16 * kDiskBlock;

// A file of 16 blocks that holds a pattern, on a scripted backend.
class FailingDisk : public testing::Test {
 protected:
  explicit FailingDisk(bool direct = false)
      : file_(folder_.path(), 0, kBytes,
              {.direct = direct, .operation_bytes = 4 * kDiskBlock, .backend = script_.Maker()}),
        pattern_(kBytes),
        data_(kBytes) {
    for (std::size_t i = 0; i < pattern_.size(); ++i) pattern_[i] = static_cast<std::byte>(i / 7);
    file_.Wait(file_.Write(0, pattern_.data(), kBytes));
  }

  std::string Path() const { return file_.scratch().path(); }
  std::vector<std::byte> Contents() {
    script_.verdict = [](const DiskOperation&) { return Verdict{}; };
    std::vector<std::byte> all(kBytes);
    file_.Wait(file_.Read(0, all.data(), kBytes));
    return all;
  }

  LogLines log_;
  TemporaryFolder folder_;
  DiskScript script_;
  DiskFile file_;
  std::vector<std::byte> pattern_;
  std::vector<std::byte> data_;
};

class FailingDirectDisk : public FailingDisk {
 protected:
  FailingDirectDisk() : FailingDisk(true) {}
};

void ContinuesShortTransfers(DiskFile& file, DiskScript& script, std::int64_t at_most) {
  script.verdict = [at_most](const DiskOperation&) { return Verdict{.at_most = at_most}; };
  std::vector<std::byte> written(kBytes - 5000);
  for (std::size_t i = 0; i < written.size(); ++i) written[i] = static_cast<std::byte>(i * 3);
  const int before = script.operations();
  file.Wait(file.Write(3000, written.data(), kBytes - 5000));
  EXPECT_GT(script.operations() - before, (kBytes - 5000) / at_most);
  std::vector<std::byte> read(written.size());
  file.Wait(file.Read(3000, read.data(), kBytes - 5000));
  EXPECT_EQ(read, written);
}

TEST_F(FailingDisk, ShortReadsAndWritesAreContinued) {
  ContinuesShortTransfers(file_, script_, 1000);
}

TEST_F(FailingDirectDisk, ShortReadsAndWritesAreContinuedByWholeBlocks) {
  ContinuesShortTransfers(file_, script_, kDiskBlock);
}

TEST_F(FailingDisk, InterruptedAndCancelledOperationsAreTriedAgain) {
  int times = 0;
  script_.verdict = [&](const DiskOperation&) {
    const int errors[] = {EINTR, EAGAIN, ECANCELED, 0};
    return Verdict{.error = errors[times++ % 4]};
  };
  file_.Wait(file_.Read(0, data_.data(), kBytes));
  EXPECT_EQ(data_, pattern_);
  EXPECT_EQ(times, 16);  // four operations, four tries each
}

TEST_F(FailingDisk, AnOperationThatIsAlwaysRefusedIsAnErrorAndNoHang) {
  script_.verdict = [](const DiskOperation&) { return Verdict{.error = EAGAIN}; };
  const DiskTicket ticket = file_.Read(0, data_.data(), 100);
  const std::string message = MessageOf<IoError>([&] { file_.Wait(ticket); });
  EXPECT_TRUE(Contains(message, "Resource temporarily unavailable")) << message;
}

TEST_F(FailingDisk, AFaultNamesPathOffsetBytesAndReasonToAllWhoAsk) {
  script_.verdict = [](const DiskOperation& operation) {
    return Verdict{.error = operation.offset == 8 * kDiskBlock ? EIO : 0};
  };
  const DiskTicket ticket = file_.Read(0, data_.data(), kBytes);
  std::string other;
  std::thread waiter([&] { other = MessageOf<IoError>([&] { file_.Wait(ticket); }); });
  const std::string message = MessageOf<IoError>([&] { file_.Wait(ticket); });
  waiter.join();
  EXPECT_EQ(message, Path() +
                         ": cannot read 16384 bytes at offset 32768: Input/output error\n"
                         "hint: the device reports a fault: see the kernel log, and offload to "
                         "another disk");
  EXPECT_EQ(other, message);
  EXPECT_EQ(MessageOf<IoError>([&] { file_.Done(ticket); }), message);
  EXPECT_EQ(Contents(), pattern_);
}

TEST_F(FailingDisk, AFullDiskInTheMiddleOfAWriteLeavesTheRestIntact) {
  script_.verdict = [](const DiskOperation& operation) {
    // Half of the second operation arrives, then nothing more.
    if (operation.offset == 8 * kDiskBlock) return Verdict{.at_most = 2 * kDiskBlock};
    return Verdict{.error = operation.offset == 10 * kDiskBlock ? ENOSPC : 0};
  };
  std::vector<std::byte> zeros(8 * kDiskBlock);
  const DiskTicket bad = file_.Write(4 * kDiskBlock, zeros.data(), 8 * kDiskBlock);
  const DiskTicket good = file_.Write(13 * kDiskBlock, zeros.data(), kDiskBlock);
  const std::string message = MessageOf<IoError>([&] { file_.Wait(bad); });
  EXPECT_TRUE(Contains(message, "cannot write 8192 bytes at offset 40960: No space left"))
      << message;
  EXPECT_TRUE(Contains(message, "hint: free space")) << message;
  file_.Wait(good);

  const std::vector<std::byte> now = Contents();
  const auto same = [&](std::int64_t first, std::int64_t last) {
    return std::memcmp(now.data() + first * kDiskBlock, pattern_.data() + first * kDiskBlock,
                       static_cast<std::size_t>((last - first) * kDiskBlock)) == 0;
  };
  EXPECT_TRUE(same(0, 4));
  EXPECT_TRUE(same(12, 13));
  EXPECT_TRUE(same(14, 16));
  EXPECT_EQ(now[static_cast<std::size_t>(13 * kDiskBlock)], std::byte{0});
  // The failed range can be written again.
  file_.Wait(file_.Write(4 * kDiskBlock, pattern_.data() + 4 * kDiskBlock, 8 * kDiskBlock));
}

TEST_F(FailingDirectDisk, AFaultWhileABlockIsReadForAPartialWriteWritesNothing) {
  script_.verdict = [](const DiskOperation& operation) {
    return Verdict{.error = operation.action == DiskAction::kRead ? EIO : 0};
  };
  const DiskTicket ticket = file_.Write(100, data_.data(), 50);
  if (file_.scratch().direct()) {
    const std::string message = MessageOf<IoError>([&] { file_.Wait(ticket); });
    EXPECT_TRUE(Contains(message, "cannot read 4096 bytes at offset 0")) << message;
  } else {  // nothing has to be read
    file_.Wait(ticket);
    std::memset(pattern_.data() + 100, 0, 50);
  }
  EXPECT_EQ(Contents(), pattern_);
}

TEST_F(FailingDisk, AnOperationThatIsNotAcceptedIsAnErrorOfItsRequestOnly) {
  script_.verdict = [](const DiskOperation& operation) {
    return Verdict{.refusal = operation.offset == 0 ? EBUSY : 0};
  };
  const DiskTicket bad = file_.Write(0, data_.data(), 100);
  const DiskTicket good = file_.Read(4 * kDiskBlock, data_.data(), 100);
  EXPECT_TRUE(Contains(MessageOf<IoError>([&] { file_.Wait(bad); }), "Device or resource busy"));
  file_.Wait(good);
  EXPECT_EQ(std::memcmp(data_.data(), pattern_.data() + 4 * kDiskBlock, 100), 0);
  EXPECT_EQ(Contents(), pattern_);
}

TEST_F(FailingDirectDisk, AFileThatWasCutByOthersIsAnError) {
  std::filesystem::resize_file(Path(), 2 * kDiskBlock);
  const DiskTicket ticket = file_.Read(0, data_.data(), 4 * kDiskBlock);
  const std::string message = MessageOf<IoError>([&] { file_.Wait(ticket); });
  EXPECT_TRUE(Contains(message, "cannot read 8192 bytes at offset 8192: the file ends before"))
      << message;
}

TEST(DiskFailure, AnExceptionWhileTheBackendIsMadeLeavesNoFile) {
  TemporaryFolder folder;
  const auto refuse = [](const DiskBackendSettings&,
                         const DiskCompletion&) -> std::unique_ptr<DiskBackend> {
    throw UnsupportedError("none");
  };
  EXPECT_THROW(DiskFile(folder.path(), 0, 4096, {.direct = false, .backend = refuse}),
               UnsupportedError);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace ullage::tiers
