// The kernels on a CUDA device: same names, meaning and bits as those of the host.
//
// Every function puts its work on `stream`, of the current device, and returns; arrays are in that
// device's memory (or pinned host memory that it can reach) and must stay until the work is done.
// Arrays that start at multiples of 16 bytes are fastest; alignment to an element is enough.
// Results equal the host's bit for bit, with the host's exception: which NaN arithmetic gives.
// A launch that fails throws StateError with the name of the kernel and CUDA's message. A build
// without CUDA throws UnsupportedError from each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/adamw.h"
#include "kernels/dropout_hash.h"
#include "kernels/exact_sum.h"
#include "kernels/sgd.h"
#include "kernels/update_part.h"
#include "kernels/weights.h"

namespace ullage::kernels::device {

using Stream = void*;  // a cudaStream_t

// kernels/adamw.h and kernels/sgd.h. Both throw StateError when t < 1.
void AdamW(const AdamWStep& step, const WeightRange& weights, DType gradient_dtype,
           const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t n, Stream stream);
void Sgd(const SgdStep& step, const WeightRange& weights, DType gradient_dtype,
         const void* gradient, float* momentum_buffer, int64_t n, Stream stream);
// The same for many ranges in few launches: about one for 60 parts, for 8 steps and for each pair
// of types. Parts must not overlap. Throw StateError when a part's step is none of `steps`.
void AdamW(std::span<const AdamWStep> steps, std::span<const UpdatePart> parts, Stream stream);
void Sgd(std::span<const SgdStep> steps, std::span<const UpdatePart> parts, Stream stream);

// kernels/weights.h
void LoadMaster(const WeightRange& range, float* out, int64_t n, Stream stream);
void StoreMaster(const WeightRange& range, const float* in, int64_t n, Stream stream);

// kernels/write_back.h, without the count.
void AdoptWrites(const void* before, const WeightRange& after, int64_t n, Stream stream);

// kernels/accumulate.h and kernels/cast.h, but arrays are aligned to their elements.
void AddToFloat(DType dtype, const void* in, float* sum, int64_t n, Stream stream);
void AddTo16(DType dtype, void* sum, const void* in, int64_t n, Stream stream);
// AddToFloat of each slice, one after the other. Slices may be in another device's memory.
void AddSlicesToFloat(DType dtype, std::span<const std::byte* const> slices, float* sum, int64_t n,
                      Stream stream);
// The same for many arrays in few launches, and copies of arrays. Arrays must not overlap.
struct ArrayPart {
  DType dtype = DType::kFloat32;  // of `in`
  const void* in = nullptr;
  void* out = nullptr;  // AddToFloat: float[n], the sums; Copy: of `dtype`
  int64_t n = 0;
};
void AddToFloat(std::span<const ArrayPart> parts, Stream stream);
void Copy(std::span<const ArrayPart> parts, Stream stream);
void Convert(DType from, const void* in, DType to, void* out, int64_t n, Stream stream);

// A SquareSum (kernels/norm.h) in device memory. ExactSum::FromWords reads the words once they are
// on the host. Integer additions make them; so they do not depend on the order of the threads.
struct SquareSumWords {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t words[ExactSum::kWords];  // not normalised
  int64_t first_non_finite;         // kNone: all elements were finite
};

// Makes `count` results empty.
void ClearSquareSums(SquareSumWords* results, int64_t count, Stream stream);

// kernels/norm.h. first_non_finite becomes the smallest index in `x` of an infinity or a NaN,
// unless a smaller one is there. Calls on several streams may add to one result at the same time;
// it has room for 2^18 calls of any length.
void AddSumOfSquares(DType dtype, const void* x, int64_t n, SquareSumWords* result, Stream stream);

// out[i] = in[i] * (DropoutHash(seed, first + i) >= threshold ? scale : 0) in fp32, rounded to
// `dtype` (nearest even): the factors of kernels/dropout_hash.h. `out` may be `in`.
void DropoutMask(DType dtype, const void* in, void* out, int64_t first, int64_t n,
                 const DropoutKey& key, Stream stream);

}  // namespace ullage::kernels::device
