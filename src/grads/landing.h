// Gradients on their way from the device to sums in the host's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "memory/buffer.h"
#include "torchx/device.h"

namespace ullage::grads {

// Copies run on a queue beside the operators'. A gradient is held until its copy is done, so that
// its memory is not given to others; when many wait, the caller does. Called by one thread at a
// time.
class Landing {
 public:
  // `bytes`: room for gradients that are to be added to sums.
  Landing(memory::Memory& memory, std::int64_t bytes);
  // Waits for what is on its way.
  ~Landing();

  // The bytes of `gradient`, contiguous on the device, to `to`.
  void Store(const at::Tensor& gradient, std::byte* to);
  // sums[i] += gradient[i]. A thread adds when the bytes have landed, in the order of the calls.
  void Add(const at::Tensor& gradient, DType dtype, float* sums);
  // The same for `numel` elements that the device can read, which stay as they are until Mark() is
  // done.
  void AddSlice(const std::byte* slice, DType dtype, std::int64_t numel, float* sums);
  // After all copies so far.
  torchx::Event Mark() const { return copies_.Mark(); }
  // Everything has arrived. Throws what a thread met.
  void Finish();

 private:
  struct Flight {
    at::Tensor gradient;
    torchx::Event done;
  };
  struct Addition {
    torchx::Event landed;
    std::int64_t begin;  // in buffer_
    std::int64_t end;
    DType dtype;
    float* sums;
    std::int64_t numel;
  };

  void Copy(const at::Tensor& gradient, std::byte* to);
  void AddCopied(std::int64_t bytes, DType dtype, std::int64_t numel, float* sums,
                 const std::function<void(std::byte* to)>& copy);
  void LetGo(std::int64_t allowed_bytes);
  std::int64_t TakeRoom(std::int64_t bytes, std::unique_lock<std::mutex>& lock);
  void AddLanded();

  const torchx::Queue copies_;
  const c10::Device device_;
  memory::Buffer buffer_;
  std::deque<Flight> flights_;
  std::int64_t flying_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Addition> additions_;  // in the order of their places
  std::int64_t next_ = 0;           // where the next place begins
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread adder_;
};

}  // namespace ullage::grads
