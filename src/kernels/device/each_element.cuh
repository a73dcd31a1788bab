// The loop of all elementwise kernels. Internal to the room.
//
// Note [Elementwise kernels]
// They are bound by memory. A thread takes kWidth neighbouring elements at a time: 16 bytes of the
// widest array, so that a warp's access to each array is one contiguous piece of whole sectors. It
// loads all arrays of kUnroll such pieces, a grid apart, before it computes and stores the first.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/device/launch.h"

namespace ullage::kernels::device {

// A Body has
//   static constexpr int kWidth                elements of a piece
//   template <int W> Load(int64_t i) const     reads elements i to i + W - 1, returns the values
//   template <int W> Store(int64_t i, values) const
// for W = kWidth and W = 1.
template <int kWidth, int kUnroll, class Body>
__global__ void __launch_bounds__(kThreads) EachElement(const Body body, int64_t n) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t pieces = n / kWidth;
  int64_t piece = thread;
  for (; piece + (kUnroll - 1) * threads < pieces; piece += kUnroll * threads) {
    decltype(body.template Load<kWidth>(0)) values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      values[u] = body.template Load<kWidth>((piece + u * threads) * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      body.template Store<kWidth>((piece + u * threads) * kWidth, values[u]);
    }
  }
  for (; piece < pieces; piece += threads) {
    body.template Store<kWidth>(piece * kWidth, body.template Load<kWidth>(piece * kWidth));
  }
  if constexpr (kWidth > 1) {
    const int64_t rest = pieces * kWidth + thread;
    if (rest < n) body.template Store<1>(rest, body.template Load<1>(rest));
  }
}

// Runs `body` over the elements 0 to n - 1 of `arrays`, one at a time if they do not all start at
// multiples of 16 bytes.
template <int kUnroll, class Body>
void LaunchEachElement(const char* kernel, const Body& body,
                       std::initializer_list<const void*> arrays, int64_t n, Stream stream) {
  if (n <= 0) return;
  uintptr_t addresses = 0;
  for (const void* array : arrays) addresses |= reinterpret_cast<uintptr_t>(array);
  if (addresses % 16 == 0) {
    constexpr int64_t kElements = Body::kWidth * kUnroll;
    EachElement<Body::kWidth, kUnroll>
        <<<Blocks((n + kElements - 1) / kElements), kThreads, 0, CudaStream(stream)>>>(body, n);
  } else {
    EachElement<1, kUnroll>
        <<<Blocks((n + kUnroll - 1) / kUnroll), kThreads, 0, CudaStream(stream)>>>(body, n);
  }
  Check(cudaGetLastError(), kernel);
}

// Calls `f` with the type as a constant: f(std::integral_constant<DType, ...>).
template <class F>
void WithDType(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(std::integral_constant<DType, DType::kFloat32>());
    case DType::kBFloat16:
      return f(std::integral_constant<DType, DType::kBFloat16>());
    case DType::kFloat16:
      return f(std::integral_constant<DType, DType::kFloat16>());
  }
}

}  // namespace ullage::kernels::device
