// device.h and device_layers.h in a build without CUDA.
#include "kernels/device.h"
#include "kernels/device_layers.h"

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

void AdamW(std::span<const AdamWStep>, std::span<const UpdatePart>, Stream) {
  Refuse("AdamW");
}

void Sgd(std::span<const SgdStep>, std::span<const UpdatePart>, Stream) {
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

void AddToFloat(std::span<const ArrayPart>, Stream) {
  Refuse("AddToFloat");
}

void Copy(std::span<const ArrayPart>, Stream) {
  Refuse("Copy");
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

void DropoutMask(DType, const void*, void*, int64_t, int64_t, const DropoutKey&, Stream) {
  Refuse("DropoutMask");
}

void AddNorm(const Matrix&, const AddNormArrays&, double, const DropoutKey&, Stream) {
  Refuse("AddNorm");
}

void AddNormGradient(const Matrix&, const AddNormGradientArrays&, const DropoutKey&, Stream) {
  Refuse("AddNormGradient");
}

void FinishColumnSums(std::span<const ColumnSum>, Stream) {
  Refuse("FinishColumnSums");
}

void PartialColumnSums(const Matrix&, std::span<const void* const>, float*, Stream) {
  Refuse("PartialColumnSums");
}

void GeluGradient(const Matrix&, const GeluGradientArrays&, Stream) {
  Refuse("GeluGradient");
}

}  // namespace ullage::kernels::device
