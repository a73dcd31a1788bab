// Managed storages whose bytes really go away between operators, and twins to compare them with.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torchx/interception.h"

namespace ullage::torchx {

// Keeps the bytes of one tensor aside. Each first Acquire copies them into fresh memory and the
// last Release poisons and frees that, so that whoever kept a pointer reads nonsense.
class FakeStorage final : public ManagedStorage {
 public:
  // Takes `tensor` over; it keeps its values, shape and dtype.
  FakeStorage(std::string name, at::Tensor tensor);
  ~FakeStorage() override;

  void Acquire(bool to_write) override;
  void Release(Outcome outcome) override;

  const at::Tensor& tensor() const { return tensor_; }
  // The bytes as they were written back last.
  at::Tensor Values() const;

  int acquires() const { return acquires_; }
  int writes() const { return writes_; }        // Release(kWritten)
  int abandoned() const { return abandoned_; }  // Release(kAbandoned)
  int writers() const { return writers_; }      // acquired to write and not released as such
  int pins() const { return pins_; }
  void FailNextAcquire() { fail_ = true; }

  // Fake storages of the process whose bytes are present, at most so far since ResetPeak.
  static int Peak();
  static void ResetPeak();

 private:
  mutable std::mutex mutex_;
  at::Tensor tensor_;
  const std::vector<std::int64_t> sizes_;
  const at::ScalarType dtype_;
  c10::Storage storage_;
  std::vector<std::byte> home_;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> here_;
  int acquires_ = 0;
  int writes_ = 0;
  int abandoned_ = 0;
  int writers_ = 0;
  int pins_ = 0;
  bool fail_ = false;
};

using FakeStorages = std::vector<std::unique_ptr<FakeStorage>>;

// Manages `tensors`, named t0, t1, ...
FakeStorages Manage(const std::vector<at::Tensor>& tensors);

// Same dtype, shape and bytes (or both undefined).
testing::AssertionResult BitwiseEqual(const at::Tensor& a, const at::Tensor& b);

// Random fp32 values from a fixed seed.
at::Tensor Random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat);

// Runs `body` on plain and on managed copies of `leaves`, all of which require a gradient, then
// the backward pass of the sum of what it returns. Results and gradients must be bitwise equal,
// and every byte must have been let go.
void ExpectLikeUnmanaged(const std::vector<at::Tensor>& leaves,
                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& body);

}  // namespace ullage::torchx
