// Arrays and weights in device memory for the tests of the device kernels.
#pragma once

#include <stdexcept>
#include <string>

#include <cuda_runtime_api.h>

#include "kernels/test_data.h"

namespace ullage::kernels {

// Fails the test loudly: without a working device there is nothing that these tests could say.
inline void MustSucceed(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// A copy of an array in device memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const Array<T>& host) : size_(host.size()) {
    MustSucceed(cudaMalloc(&data_, Bytes() + 1));
    MustSucceed(cudaMemcpy(data_, host.data(), Bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return static_cast<T*>(data_); }

  // What it holds after all work on the device, whatever the stream.
  Array<T> Host() const {
    MustSucceed(cudaDeviceSynchronize());
    Array<T> host(size_);
    MustSucceed(cudaMemcpy(host.data(), data_, Bytes(), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  size_t Bytes() const { return size_ * sizeof(T); }

  size_t size_;
  void* data_ = nullptr;
};

class DeviceWeights {
 public:
  explicit DeviceWeights(const Weights& host)
      : dtype_(host.dtype), weight_(host.weight), extension_(host.extension) {}

  WeightRange Range() const {
    return {dtype_, weight_.data(), dtype_ == DType::kFloat32 ? nullptr : extension_.data()};
  }
  Weights Host() const {
    Weights host(dtype_, {});
    host.weight = weight_.Host();
    host.extension = extension_.Host();
    return host;
  }

 private:
  DType dtype_;
  DeviceArray<std::byte> weight_, extension_;
};

// Part of an array: what a kernel is given. The rest must stay as it is.
struct Part {
  int64_t begin;
  int64_t count;
};

// Parts of an array of at least 5000 elements: every remainder of a vector, aligned to 16 bytes or
// only for some types or not at all.
inline std::vector<Part> AwkwardParts() {
  std::vector<Part> parts = {{0, 0}, {4, 1001}, {8, 4099}, {64, 2048}, {1, 1000}, {3, 4997}};
  for (int64_t count = 1; count <= 20; ++count) parts.push_back({0, count});
  for (int64_t begin = 1; begin <= 9; ++begin) parts.push_back({begin, 70 + begin});
  return parts;
}

inline std::string Describe(const Part& part) {
  return std::to_string(part.count) + " elements from " + std::to_string(part.begin);
}

constexpr int64_t kTenMillion = 10'000'000;

}  // namespace ullage::kernels
