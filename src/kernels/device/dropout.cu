#include "kernels/device/each_element.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/dropout_hash.h"

namespace ullage::kernels::device {
namespace {

template <DType kType>
struct DropoutBody {
  static constexpr int kWidth = 16 / ElementBytes(kType);

  template <int W>
  __device__ Floats<W> Load(int64_t i) const {
    return LoadFloats<kType, W>(in, i);
  }
  template <int W>
  __device__ void Store(int64_t i, Floats<W> values) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float factor = DropoutFactor(key, static_cast<uint64_t>(first + i + j));
      values.at[j] = __fmul_rn(values.at[j], factor);
    }
    StoreFloats<kType, W>(values, out, i);
  }

  const void* in;
  void* out;
  int64_t first;
  DropoutKey key;
};

}  // namespace

void DropoutMask(DType dtype, const void* in, void* out, int64_t first, int64_t n,
                 const DropoutKey& key, Stream stream) {
  WithDType(dtype, [&](auto type) {
    LaunchEachElement<2>("DropoutMask", DropoutBody<type()>{in, out, first, key}, {in, out}, n,
                         stream);
  });
}

}  // namespace ullage::kernels::device
