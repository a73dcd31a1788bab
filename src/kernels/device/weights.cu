#include "kernels/weights.h"

#include "kernels/device/each_element.cuh"
#include "kernels/device/elements.cuh"

namespace ullage::kernels::device {
namespace {

template <DType kWeight>
struct LoadMasterBody {
  static constexpr int kWidth = 4;

  template <int W>
  __device__ Floats<W> Load(int64_t i) const {
    return LoadMasters<kWeight, W>(range, i);
  }
  template <int W>
  __device__ void Store(int64_t i, const Floats<W>& masters) const {
    StoreFloats<DType::kFloat32, W>(masters, out, i);
  }

  WeightRange range;
  float* out;
};

template <DType kWeight>
struct StoreMasterBody {
  static constexpr int kWidth = 4;

  template <int W>
  __device__ Floats<W> Load(int64_t i) const {
    return LoadFloats<DType::kFloat32, W>(in, i);
  }
  template <int W>
  __device__ void Store(int64_t i, const Floats<W>& masters) const {
    StoreMasters<kWeight, W>(masters, range, i);
  }

  WeightRange range;
  const float* in;
};

// Of the 16-bit types.
template <DType kWeight>
struct AdoptWritesBody {
  static constexpr int kWidth = 16 / (kWeight == DType::kFloat16 ? sizeof(float) : 2);

  template <int W>
  struct Values {
    Elements<kWeight, W> before, after;
  };

  template <int W>
  __device__ Values<W> Load(int64_t i) const {
    return {LoadElements<kWeight, W>(before, i), LoadElements<kWeight, W>(after.weight, i)};
  }

  template <int W>
  __device__ void Store(int64_t i, const Values<W>& values) const {
    bool written[W];
    bool any = false;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const uint16_t old = values.before.at[j];
      const uint16_t now = values.after.at[j];
      written[j] = old != now && !(IsNan(old) && IsNan(now));
      any = any || written[j];
    }
    // Nearly always: most weights are as the last step left them.
    if (!any) return;
    constexpr DType kExtension = kWeight == DType::kFloat16 ? DType::kFloat32 : kWeight;
    auto extension = LoadElements<kExtension, W>(after.extension, i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (!written[j]) continue;
      if constexpr (kWeight == DType::kFloat16) {
        extension.at[j] = std::bit_cast<uint32_t>(FloatFromFloat16(values.after.at[j]));
      } else {
        extension.at[j] = 0;
      }
    }
    StoreElements<kExtension, W>(extension, after.extension, i);
  }

  __device__ static bool IsNan(uint16_t bits) {
    return (bits & 0x7fff) > (kWeight == DType::kFloat16 ? 0x7c00 : 0x7f80);
  }

  const void* before;
  WeightRange after;
};

template <DType kWeight>
void LaunchAdoptWrites(const void* before, const WeightRange& after, int64_t n, Stream stream) {
  LaunchEachElement<4>("AdoptWrites", AdoptWritesBody<kWeight>{before, after},
                       {before, after.weight, after.extension}, n, stream);
}

}  // namespace

void LoadMaster(const WeightRange& range, float* out, int64_t n, Stream stream) {
  WithDType(range.dtype, [&](auto weight) {
    LaunchEachElement<4>("LoadMaster", LoadMasterBody<weight()>{range, out},
                         {range.weight, range.extension, out}, n, stream);
  });
}

void StoreMaster(const WeightRange& range, const float* in, int64_t n, Stream stream) {
  WithDType(range.dtype, [&](auto weight) {
    LaunchEachElement<4>("StoreMaster", StoreMasterBody<weight()>{range, in},
                         {range.weight, range.extension, in}, n, stream);
  });
}

void AdoptWrites(const void* before, const WeightRange& after, int64_t n, Stream stream) {
  if (after.dtype == DType::kBFloat16) {
    LaunchAdoptWrites<DType::kBFloat16>(before, after, n, stream);
  } else if (after.dtype == DType::kFloat16) {
    LaunchAdoptWrites<DType::kFloat16>(before, after, n, stream);
  }
}

}  // namespace ullage::kernels::device
