#include "kernels/weights.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/weights.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/scalar_cast.h"
#include "kernels/simd_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ullage::kernels {
namespace HWY_NAMESPACE {

#if ULLAGE_PLAIN_TARGET

void LoadMasterTarget(const WeightRange& range, float* out, int64_t n) {
  reference::LoadMaster(range, out, n);
}

void StoreMasterTarget(const WeightRange& range, const float* in, int64_t n) {
  reference::StoreMaster(range, in, n);
}

#else

template <DType kWeight>
void LoadMasterVectors(const WeightRange& range, float* out, int64_t n) {
  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    hn::StoreU(LoadMasters<kWeight>(range.weight, range.extension, i), FloatTag(), out + i);
  }
  reference::LoadMaster(Skip(range, whole), out + whole, n - whole);
}

template <DType kWeight>
void StoreMasterVectors(const WeightRange& range, const float* in, int64_t n) {
  const int64_t whole = WholeVectors(n);
  for (int64_t i = 0; i < whole; i += VectorLanes()) {
    StoreMasters<kWeight>(hn::LoadU(FloatTag(), in + i), range.weight, range.extension, i);
  }
  reference::StoreMaster(Skip(range, whole), in + whole, n - whole);
}

void LoadMasterTarget(const WeightRange& range, float* out, int64_t n) {
  switch (range.dtype) {
    case DType::kFloat32:
      return LoadMasterVectors<DType::kFloat32>(range, out, n);
    case DType::kBFloat16:
      return LoadMasterVectors<DType::kBFloat16>(range, out, n);
    case DType::kFloat16:
      return LoadMasterVectors<DType::kFloat16>(range, out, n);
  }
}

void StoreMasterTarget(const WeightRange& range, const float* in, int64_t n) {
  switch (range.dtype) {
    case DType::kFloat32:
      return StoreMasterVectors<DType::kFloat32>(range, in, n);
    case DType::kBFloat16:
      return StoreMasterVectors<DType::kBFloat16>(range, in, n);
    case DType::kFloat16:
      return StoreMasterVectors<DType::kFloat16>(range, in, n);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace ullage::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ullage::kernels {

HWY_EXPORT(LoadMasterTarget);
HWY_EXPORT(StoreMasterTarget);

WeightRange Skip(const WeightRange& range, int64_t count) {
  return {range.dtype, At(range.dtype, range.weight, count),
          static_cast<char*>(range.extension) + count * MasterExtensionBytes(range.dtype)};
}

void LoadMaster(const WeightRange& range, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(LoadMasterTarget)(range, out, n);
}

void StoreMaster(const WeightRange& range, const float* in, int64_t n) {
  HWY_DYNAMIC_DISPATCH(StoreMasterTarget)(range, in, n);
}

}  // namespace ullage::kernels
#endif
