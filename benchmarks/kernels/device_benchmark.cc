// Bytes per second of the kernels on the device, on 2^28 elements, beside cudaMemcpyAsync within
// the device: one line each, the median of 20 launches. Bytes are those that must be read and
// written.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_layers.h"

namespace {

namespace device = ullage::kernels::device;
using ullage::DType;

constexpr int64_t kElements = int64_t{1} << 28;
constexpr int kLaunches = 20;

void MustSucceed(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Device memory of `bytes_per_element`, every byte set to `value`.
class Buffer {
 public:
  explicit Buffer(int64_t bytes_per_element, int value) {
    const auto bytes = static_cast<size_t>(kElements * bytes_per_element);
    MustSucceed(cudaMalloc(&data_, bytes));
    MustSucceed(cudaMemset(data_, value, bytes));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  void* data() const { return data_; }
  float* floats() const { return as<float>(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

void Measure(const char* name, int64_t bytes_per_element, const std::function<void()>& launch) {
  cudaEvent_t start, end;
  MustSucceed(cudaEventCreate(&start));
  MustSucceed(cudaEventCreate(&end));
  launch();
  std::vector<float> milliseconds(kLaunches);
  for (float& value : milliseconds) {
    MustSucceed(cudaEventRecord(start, nullptr));
    launch();
    MustSucceed(cudaEventRecord(end, nullptr));
    MustSucceed(cudaEventSynchronize(end));
    MustSucceed(cudaEventElapsedTime(&value, start, end));
  }
  std::ranges::sort(milliseconds);
  const double median = milliseconds[kLaunches / 2];
  std::printf("%-34s %8.3f ms %8.0f GB/s %8.2f G elements/s\n", name, median,
              static_cast<double>(kElements * bytes_per_element) / median / 1e6,
              static_cast<double>(kElements) / median / 1e6);
  MustSucceed(cudaEventDestroy(start));
  MustSucceed(cudaEventDestroy(end));
}

}  // namespace

int main() {
  // 0x3c3c is 0.0115 in both fp32 and bf16.
  const Buffer floats(4, 0x3c), exp_avg(4, 0x3c), exp_avg_sq(4, 0x3c), gradient(4, 0x3c);
  const Buffer weight(2, 0x3c), extension(2, 0), gradient16(2, 0x3c);
  device::SquareSumWords* sum = nullptr;
  MustSucceed(cudaMalloc(reinterpret_cast<void**>(&sum), sizeof(*sum)));
  device::ClearSquareSums(sum, 1, nullptr);
  ullage::kernels::AdamWStep step;
  step.lr = 1e-6;
  step.weight_decay = 0.01;
  step.t = 100;
  const ullage::kernels::WeightRange bf16{DType::kBFloat16, weight.data(), extension.data()};
  const ullage::kernels::WeightRange fp32{DType::kFloat32, floats.data(), nullptr};

  Measure("copy", 8, [&] {
    MustSucceed(cudaMemcpyAsync(floats.data(), gradient.data(), kElements * 4,
                                cudaMemcpyDeviceToDevice, nullptr));
  });
  Measure("AdamW bf16, gradient bf16", 26, [&] {
    device::AdamW(step, bf16, DType::kBFloat16, gradient16.data(), exp_avg.floats(),
                  exp_avg_sq.floats(), kElements, nullptr);
  });
  Measure("AdamW bf16, gradient fp32", 28, [&] {
    device::AdamW(step, bf16, DType::kFloat32, gradient.data(), exp_avg.floats(),
                  exp_avg_sq.floats(), kElements, nullptr);
  });
  Measure("AdamW fp32, gradient fp32", 28, [&] {
    device::AdamW(step, fp32, DType::kFloat32, gradient.data(), exp_avg.floats(),
                  exp_avg_sq.floats(), kElements, nullptr);
  });
  Measure("AddToFloat bf16", 10, [&] {
    device::AddToFloat(DType::kBFloat16, gradient16.data(), floats.floats(), kElements, nullptr);
  });
  Measure("AddTo16 bf16", 6, [&] {
    device::AddTo16(DType::kBFloat16, weight.data(), gradient16.data(), kElements, nullptr);
  });
  Measure("Convert fp32 to bf16", 6, [&] {
    device::Convert(DType::kFloat32, gradient.data(), DType::kBFloat16, weight.data(), kElements,
                    nullptr);
  });
  Measure("AddSumOfSquares fp32", 4, [&] {
    device::AddSumOfSquares(DType::kFloat32, gradient.data(), kElements, sum, nullptr);
  });
  Measure("AddSumOfSquares bf16", 2, [&] {
    device::AddSumOfSquares(DType::kBFloat16, gradient16.data(), kElements, sum, nullptr);
  });
  Measure("AdoptWrites bf16, none written", 2,
          [&] { device::AdoptWrites(weight.data(), bf16, kElements, nullptr); });
  Measure("DropoutMask bf16", 4, [&] {
    device::DropoutMask(DType::kBFloat16, gradient16.data(), weight.data(), 0, kElements,
                        {42, 0x1999999a, 1.0f / 0.9f}, nullptr);
  });
  std::vector<device::ArrayPart> parts;
  for (int64_t i = 0; i < kElements; i += kElements / 64) {
    parts.push_back({DType::kBFloat16, gradient16.as<uint16_t>() + i, weight.as<uint16_t>() + i,
                     kElements / 64});
  }
  Measure("Copy bf16, 64 parts", 4, [&] { device::Copy(parts, nullptr); });

  const ullage::kernels::Matrix shape{DType::kBFloat16, kElements / 1024, 1024};
  auto* const rows = exp_avg.floats();
  Measure("AddNorm bf16, rows of 1024", 8, [&] {
    device::AddNorm(shape,
                    {gradient16.data(), weight.data(), extension.data(), extension.data(),
                     gradient16.data(), gradient.data(), rows, rows + shape.rows},
                    1e-5, {42, 0x1999999a, 1.0f / 0.9f}, nullptr);
  });
  Measure("AddNormGradient bf16, rows of 1024", 8, [&] {
    device::AddNormGradient(shape,
                            {gradient16.data(), weight.data(), rows, rows + shape.rows,
                             extension.data(), gradient.data(), floats.data(), exp_avg_sq.floats()},
                            {42, 0x1999999a, 1.0f / 0.9f}, nullptr);
  });
  Measure("GeluGradient bf16, rows of 1024", 6, [&] {
    device::GeluGradient(
        shape, {gradient16.data(), weight.data(), gradient16.data(), exp_avg_sq.floats()}, nullptr);
  });
  MustSucceed(cudaFree(sum));
}
