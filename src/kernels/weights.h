// Weights together with what they lack of their exact fp32 values, the master.
//
// Note [Master in 16 + 16 bit]
// A bf16 weight is the upper half of the bits of its fp32 master, rounded. The lower half is kept
// beside it as a signed number, the extension:
//   master bits = (weight << 16) + extension            (modulo 2^32)
// so weight and master together cost 4 bytes an element and not 6, and every reader of the weights
// reads what the update wrote. As the extension reaches from -2^15 to 2^15 - 1, a master halfway
// between two weights belongs to the one of larger magnitude: weights are rounded to nearest with
// ties AWAY from zero. Ties to even, as everywhere else (Convert), cannot be had: 65,537 fp32
// values, the two ties included, round to each bf16 of even mantissa, and 16 bits tell only 65,536
// apart. A NaN master is kept as a quiet NaN weight of its sign, with extension 0.
// An fp16 weight has another exponent range than its master, so the extension is the master itself
// and the weight is it rounded to nearest even. An fp32 weight is its own master.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ullage::kernels {

// A range of weights and what they lack of their exact fp32 values, the master. Owns nothing.
struct WeightRange {
  DType dtype = DType::kFloat32;  // of `weight`
  void* weight = nullptr;         // n elements
  // MasterExtensionBytes(dtype) for each element.
  void* extension = nullptr;  // fp32: null; bf16: int16_t[n]; fp16: float[n], the master itself
};

// The range from element `count` on.
WeightRange Skip(const WeightRange& range, int64_t count);

// out[i] = the master of element i, for 0 <= i < n. Arrays must not overlap; 64-byte alignment is
// fastest, that of an element is enough. One thread.
void LoadMaster(const WeightRange& range, float* out, int64_t n);

// Sets weight and extension so that element i has the master in[i], for 0 <= i < n. A later
// LoadMaster gives in[i] back bit for bit, except that with bf16 a NaN becomes the quiet one of its
// sign. Same conditions as LoadMaster.
void StoreMaster(const WeightRange& range, const float* in, int64_t n);

namespace reference {
void LoadMaster(const WeightRange& range, float* out, int64_t n);
void StoreMaster(const WeightRange& range, const float* in, int64_t n);
}  // namespace reference

}  // namespace ullage::kernels
