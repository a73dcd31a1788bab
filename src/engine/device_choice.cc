#include "engine/device_choice.h"

#include <fmt/format.h>

#include "comm/comm.h"
#include "torchx/device.h"

namespace ullage::engine {

std::string UseDeviceOf(const Ranks& ranks) {
  const int devices = torchx::CudaDeviceCount();
  if (ranks.world_size() == 1 || devices == 0) return "";
  int before = 0, local = 0;
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    if (!ranks.comm().IsLocal(rank)) continue;
    ++local;
    before += rank < ranks.rank();
  }
  torchx::UseDevice(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(before % devices)));
  if (local <= devices) return "";
  return fmt::format(
      "{} ranks share {} CUDA device{} of this host: each has a part of its memory and time", local,
      devices, devices == 1 ? "" : "s");
}

}  // namespace ullage::engine
