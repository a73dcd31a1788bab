// Who lives, and where.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "comm/host.h"
#include "comm/region.h"
#include "comm/socket.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

TEST(Host, AProcessLivesUntilItIsAZombie) {
  const ProcessId self = ThisProcess();
  EXPECT_EQ(self.pid, getpid());
  EXPECT_GT(self.start_time, 0u);
  EXPECT_TRUE(IsAlive(self));
  EXPECT_FALSE(IsAlive({self.pid, self.start_time + 1}));  // the id was given out again

  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_TRUE(IsAlive({child, 0}));
  kill(child, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(IsAlive({child, 0}));  // dead, not yet collected
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(IsAlive({child, 0}));
}

TEST(Host, TheIdCanBeForced) {
  EXPECT_EQ(HostId(), MachineId());
  EXPECT_NE(MachineId().find("net:["), std::string::npos);
  setenv("ULLAGE_HOST_ID", "left", 1);
  EXPECT_EQ(HostId(), "left");
  unsetenv("ULLAGE_HOST_ID");
}

TEST(Region, PeersReadWhatTheOwnerWrites) {
  OwnedRegion owned = OwnedRegion::Shared("a test", 5000);
  EXPECT_EQ(owned.bytes(), 8192);
  owned.data()[4999] = std::byte{77};
  const PeerRegion peer(ThisProcess(), owned.fd(), 8192);
  std::byte got{};
  peer.Read(4999, std::span(&got, 1));
  EXPECT_EQ(got, std::byte{77});
  const Mapping mapping = peer.Map(4096, 4096);
  owned.data()[4999] = std::byte{78};
  EXPECT_EQ(mapping.data()[4999 - 4096], std::byte{78});
  EXPECT_THROW(peer.Read(8192, std::span(&got, 1)), CommError);
}

TEST(Region, WhatCannotBeOpenedIsAnErrorWithARemedy) {
  try {
    PeerRegion(ProcessId{getpid(), 0}, 98765, 4096);
    FAIL() << "opened";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("/fd/98765: No such file"), std::string::npos) << text;
    EXPECT_NE(text.find("hint: the ranks of a host must run as the same user"), std::string::npos);
  }
  OwnedRegion small = OwnedRegion::Shared("small", 4096);
  EXPECT_THROW(PeerRegion(ThisProcess(), small.fd(), 8192), CommError);
}

TEST(Region, TooMuchIsOutOfMemory) {
  try {
    OwnedRegion::Shared("everything", std::int64_t{1} << 62);
    FAIL() << "granted";
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("(4611686018427387904 bytes) requested, "), std::string::npos) << text;
    EXPECT_NE(text.find(" available on this host"), std::string::npos) << text;
  }
}

TEST(Socket, TheAddressTowardsThisHostIsTheLoopback) {
  EXPECT_EQ(AddressTowards("127.0.0.1", 1), "127.0.0.1");
  EXPECT_TRUE(IsLoopback(AddressTowards("localhost", 1)));
}

}  // namespace
}  // namespace ullage::comm
