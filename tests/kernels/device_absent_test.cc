#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/device_layers.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

TEST(DeviceAbsent, EveryKernelSaysThatTheBuildIsWithoutCuda) {
  constexpr DType kType = DType::kFloat32;
  const std::vector<std::function<void()>> kernels = {
      [] { device::AdamW({}, {}, kType, nullptr, nullptr, nullptr, 0, nullptr); },
      [] { device::Sgd({}, {}, kType, nullptr, nullptr, 0, nullptr); },
      [] { device::AdamW(std::span<const AdamWStep>(), {}, nullptr); },
      [] { device::Sgd(std::span<const SgdStep>(), {}, nullptr); },
      [] { device::LoadMaster({}, nullptr, 0, nullptr); },
      [] { device::StoreMaster({}, nullptr, 0, nullptr); },
      [] { device::AdoptWrites(nullptr, {}, 0, nullptr); },
      [] { device::AddToFloat(kType, nullptr, nullptr, 0, nullptr); },
      [] { device::AddSlicesToFloat(kType, {}, nullptr, 0, nullptr); },
      [] { device::AddToFloat({}, nullptr); },
      [] { device::Copy({}, nullptr); },
      [] { device::AddTo16(kType, nullptr, nullptr, 0, nullptr); },
      [] { device::Convert(kType, nullptr, kType, nullptr, 0, nullptr); },
      [] { device::ClearSquareSums(nullptr, 0, nullptr); },
      [] { device::AddSumOfSquares(kType, nullptr, 0, nullptr, nullptr); },
      [] { device::DropoutMask(kType, nullptr, nullptr, 0, 0, {}, nullptr); },
      [] { device::AddNorm({}, {}, 0, {}, nullptr); },
      [] { device::AddNormGradient({}, {}, {}, nullptr); },
      [] { device::FinishColumnSums({}, nullptr); },
      [] { device::PartialColumnSums({}, {}, nullptr, nullptr); },
      [] { device::GeluGradient({}, {}, nullptr); }};
  for (const auto& kernel : kernels) {
    try {
      kernel();
      ADD_FAILURE() << "a kernel ran without a device";
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("ULLAGE_CUDA=ON"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ullage::kernels
