// device.h in a build without CUDA.
#include "kernels/device.h"

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::kernels::device {
namespace {

[[noreturn]] void Refuse(const char* kernel) {
  throw UnsupportedError(
      fmt::format("{} on a CUDA device: this build of Ullage is without CUDA", kernel),
      "build it where nvcc is installed (PyPI: nvidia-cuda-nvcc), with -DULLAGE_CUDA=ON");
}

}  // namespace

void AdamW(const AdamWStep&, const WeightRange&, DType, const void*, float*, float*, int64_t,
           Stream) {
  Refuse("AdamW");
}

void Sgd(const SgdStep&, const WeightRange&, DType, const void*, float*, int64_t, Stream) {
  Refuse("Sgd");
}

void LoadMaster(const WeightRange&, float*, int64_t, Stream) {
  Refuse("LoadMaster");
}

void StoreMaster(const WeightRange&, const float*, int64_t, Stream) {
  Refuse("StoreMaster");
}

void AdoptWrites(const void*, const WeightRange&, int64_t, Stream) {
  Refuse("AdoptWrites");
}

void AddToFloat(DType, const void*, float*, int64_t, Stream) {
  Refuse("AddToFloat");
}

void AddSlicesToFloat(DType, std::span<const std::byte* const>, float*, int64_t, Stream) {
  Refuse("AddSlicesToFloat");
}

void AddTo16(DType, void*, const void*, int64_t, Stream) {
  Refuse("AddTo16");
}

void Convert(DType, const void*, DType, void*, int64_t, Stream) {
  Refuse("Convert");
}

void ClearSquareSums(SquareSumWords*, int64_t, Stream) {
  Refuse("ClearSquareSums");
}

void AddSumOfSquares(DType, const void*, int64_t, SquareSumWords*, Stream) {
  Refuse("AddSumOfSquares");
}

void DropoutMask(DType, const void*, void*, int64_t, int64_t, uint64_t, uint32_t, float, Stream) {
  Refuse("DropoutMask");
}

}  // namespace ullage::kernels::device
