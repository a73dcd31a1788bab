// Aligned arrays, awkward numbers, and running a check on every instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "kernels/weights.h"

namespace ullage::kernels {

template <typename T>
struct Aligned64 {
  using value_type = T;
  Aligned64() = default;
  template <typename U>
  Aligned64(const Aligned64<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const Aligned64&) const { return true; }
};

template <typename T>
using Array = std::vector<T, Aligned64<T>>;
using Floats = Array<float>;
using Bytes = Array<std::byte>;

// Every kind of float: all bit patterns alike (so every exponent, subnormals, infinities and NaNs),
// ordinary values, values near the limits of fp16 and bf16, halfway cases, zeros.
Floats AnyFloats(int64_t n, uint64_t seed);
// Normally distributed with the given standard deviation.
Floats NormalFloats(int64_t n, uint64_t seed, float deviation = 1);

// `values` as an array of `dtype`, by the plain reference.
Bytes As(DType dtype, const Floats& values);

// Weights that own their arrays.
struct Weights {
  Weights(DType dtype, const Floats& masters);  // by the plain reference
  int64_t size() const { return static_cast<int64_t>(weight.size()) / ElementBytes(dtype); }
  WeightRange Range();
  Floats Masters();  // by the plain reference

  DType dtype;
  Bytes weight, extension;
};

// Runs `check` with each instruction set in turn, named in failures, and then restores the best.
void OnEveryTarget(const std::function<void()>& check);

// Bit for bit, except that any NaN equals any other.
void ExpectSameNumbers(const Floats& actual, const Floats& expected);
void ExpectSameNumbers(DType dtype, const Bytes& actual, const Bytes& expected);
void ExpectSameWeights(const Weights& actual, const Weights& expected);

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr int64_t kLongestTail = 130;
constexpr int64_t kMany = 1'000'000;

}  // namespace ullage::kernels
