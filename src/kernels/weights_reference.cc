#include "kernels/scalar_master.h"
#include "kernels/weights.h"

namespace ullage::kernels::reference {

void LoadMaster(const WeightRange& range, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = LoadMasterAt(range, i);
}

void StoreMaster(const WeightRange& range, const float* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) StoreMasterAt(range, i, in[i]);
}

}  // namespace ullage::kernels::reference
