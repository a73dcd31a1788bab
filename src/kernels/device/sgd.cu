#include "kernels/device/each_update.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/sgd_internal.h"

namespace ullage::kernels::device {
namespace {

template <DType kWeight, DType kGradient>
struct SgdBody {
  template <int W>
  struct Values {
    Floats<W> p, g, b;
  };

  template <int W>
  __device__ Values<W> Load(int64_t i) const {
    Values<W> values{LoadMasters<kWeight, W>(arrays.weights, i),
                     LoadFloats<kGradient, W>(arrays.gradient, i),
                     {}};
    if (factors.kind == Momentum::kLaterStep) {
      values.b = LoadFloats<DType::kFloat32, W>(arrays.momentum_buffer, i);
    }
    return values;
  }

  template <int W>
  __device__ void Store(int64_t i, Values<W> values) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      float& p = values.p.at[j];
      float& b = values.b.at[j];
      float g = __fmul_rn(factors.gradient_factor, values.g.at[j]);
      if (factors.decay) g = __fmaf_rn(factors.weight_decay, p, g);
      if (factors.kind != Momentum::kNone) {
        b = factors.kind == Momentum::kLaterStep
                ? __fmaf_rn(factors.momentum, b, __fmul_rn(factors.one_minus_dampening, g))
                : g;
        g = factors.nesterov ? __fmaf_rn(factors.momentum, b, g) : b;
      }
      p = __fmaf_rn(factors.minus_lr, g, p);
    }
    StoreMasters<kWeight, W>(values.p, arrays.weights, i);
    if (factors.kind != Momentum::kNone) {
      StoreFloats<DType::kFloat32, W>(values.b, arrays.momentum_buffer, i);
    }
  }

  SgdFactors factors;
  SgdArrays arrays;
};

template <DType kWeight, DType kGradient>
struct SgdTable : UpdateTable<SgdFactors> {
  __device__ SgdBody<kWeight, kGradient> BodyOf(int part) const {
    const UpdatePointers& at = this->parts[part];
    return {this->steps[at.step],
            {{kWeight, at.weight, at.extension}, kGradient, at.gradient, at.first_moment}};
  }
};

}  // namespace

void Sgd(std::span<const SgdStep> steps, std::span<const UpdatePart> parts, Stream stream) {
  LaunchUpdates<SgdTable, SgdFactors>("Sgd", steps, parts, stream);
}

void Sgd(const SgdStep& step, const WeightRange& weights, DType gradient_dtype,
         const void* gradient, float* momentum_buffer, int64_t n, Stream stream) {
  const UpdatePart part{0, weights, gradient_dtype, gradient, momentum_buffer, nullptr, n};
  Sgd({&step, 1}, {&part, 1}, stream);
}

}  // namespace ullage::kernels::device
