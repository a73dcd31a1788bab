#include "kernels/accumulate.h"
#include "kernels/scalar_cast.h"

namespace ullage::kernels::reference {

void SetFloat(DType dtype, const void* in, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = 0.0F + LoadFloat(dtype, in, i);
}

void AddToFloat(DType dtype, const void* in, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] + LoadFloat(dtype, in, i);
}

void AddTo16(DType dtype, void* sum, const void* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    StoreFloat(dtype, sum, i, LoadFloat(dtype, sum, i) + LoadFloat(dtype, in, i));
  }
}

}  // namespace ullage::kernels::reference
