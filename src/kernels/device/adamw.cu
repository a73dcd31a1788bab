#include "kernels/adamw_internal.h"
#include "kernels/device/each_update.cuh"
#include "kernels/device/elements.cuh"

namespace ullage::kernels::device {
namespace {

template <DType kWeight, DType kGradient>
struct AdamWBody {
  template <int W>
  struct Values {
    Floats<W> p, g, m, v;
  };

  template <int W>
  __device__ Values<W> Load(int64_t i) const {
    return {LoadMasters<kWeight, W>(arrays.weights, i),
            LoadFloats<kGradient, W>(arrays.gradient, i),
            LoadFloats<DType::kFloat32, W>(arrays.exp_avg, i),
            LoadFloats<DType::kFloat32, W>(arrays.exp_avg_sq, i)};
  }

  template <int W>
  __device__ void Store(int64_t i, Values<W> values) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      float& p = values.p.at[j];
      float& m = values.m.at[j];
      float& v = values.v.at[j];
      float g = __fmul_rn(factors.gradient_factor, values.g.at[j]);
      if (factors.decay == Decay::kL2) g = __fmaf_rn(factors.decay_factor, p, g);
      m = __fmaf_rn(factors.beta1, m, __fmul_rn(factors.one_minus_beta1, g));
      v = __fmaf_rn(factors.beta2, v, __fmul_rn(__fmul_rn(factors.one_minus_beta2, g), g));
      if (factors.decay == Decay::kDecoupled) p = __fmaf_rn(factors.decay_factor, p, p);
      const float divisor =
          __fadd_rn(__fdiv_rn(__fsqrt_rn(v), factors.sqrt_correction2), factors.eps);
      p = __fsub_rn(p, __fdiv_rn(__fmul_rn(factors.step_size, m), divisor));
    }
    StoreMasters<kWeight, W>(values.p, arrays.weights, i);
    StoreFloats<DType::kFloat32, W>(values.m, arrays.exp_avg, i);
    StoreFloats<DType::kFloat32, W>(values.v, arrays.exp_avg_sq, i);
  }

  AdamWFactors factors;
  AdamWArrays arrays;
};

template <DType kWeight, DType kGradient>
struct AdamWTable : UpdateTable<AdamWFactors> {
  __device__ AdamWBody<kWeight, kGradient> BodyOf(int part) const {
    const UpdatePointers& at = this->parts[part];
    return {this->steps[at.step],
            {{kWeight, at.weight, at.extension},
             kGradient,
             at.gradient,
             at.first_moment,
             at.second_moment}};
  }
};

}  // namespace

void AdamW(std::span<const AdamWStep> steps, std::span<const UpdatePart> parts, Stream stream) {
  LaunchUpdates<AdamWTable, AdamWFactors>("AdamW", steps, parts, stream);
}

void AdamW(const AdamWStep& step, const WeightRange& weights, DType gradient_dtype,
           const void* gradient, float* exp_avg, float* exp_avg_sq, int64_t n, Stream stream) {
  const UpdatePart part{0, weights, gradient_dtype, gradient, exp_avg, exp_avg_sq, n};
  AdamW({&step, 1}, {&part, 1}, stream);
}

}  // namespace ullage::kernels::device
