// What a profiler is told, and what a message of torch's allocator says.
#include "torchx/profile.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "torchx/device_memory.h"

namespace ullage::torchx {
namespace {

std::vector<std::string> seen;

std::unique_ptr<at::ObserverContext> See(const at::RecordFunction& function) {
  seen.emplace_back(function.name());
  return nullptr;
}

TEST(ProfilerRange, IsAUserScopeWithNameAndUnitWhileSomebodyProfiles) {
  { const ProfilerRange nobody("forward"); }
  EXPECT_TRUE(seen.empty());
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(See).scopes({at::RecordScope::USER_SCOPE}));
  {
    const ProfilerRange phase("forward");
    const ProfilerRange unit("gather", 3);
  }
  at::removeCallback(handle);
  { const ProfilerRange nobody("backward"); }
  EXPECT_EQ(seen, (std::vector<std::string>{"ullage::forward", "ullage::gather 3"}));
}

TEST(RefusedBytes, AreTheSizeInTheMessageOfTorchsAllocator) {
  EXPECT_EQ(RefusedBytes("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total "
                         "capacity of 79.25 GiB of which 1.06 GiB is free."),
            "2.50 GiB");
  EXPECT_EQ(RefusedBytes("Tried to allocate 20.00 MiB (GPU 0; 3 GiB total capacity)"), "20.00 MiB");
  EXPECT_EQ(RefusedBytes("Tried to allocate 512 bytes."), "512 bytes");
  EXPECT_EQ(RefusedBytes("CUDA error: out of memory"), "");
  EXPECT_EQ(RefusedBytes("Tried to allocate "), "");
}

TEST(DeviceMemory, OutsideIsWhatNeitherIsFreeNorTorchs) {
  DeviceMemory memory;
  memory.total = 1000;
  memory.free = 300;
  memory.reserved = 650;
  EXPECT_EQ(memory.outside(), 50);
}

}  // namespace
}  // namespace ullage::torchx
