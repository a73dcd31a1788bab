// Gradients on their way from the device to sums in the host's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/norm.h"
#include "memory/buffer.h"
#include "torchx/device.h"

namespace ullage::grads {

// Note [Crossing]. Copies run on a queue beside the operators'. A gradient first moves to a ring on
// the device, so that autograd's memory is free as soon as the operators have gone on: held until
// its copy is done, it would lie between what comes and goes in the backward pass, for a time that
// nobody can predict, and so would the memory that operators need. Where the ring has no room, the
// operators' queue waits for the copies; the host never does. Called by one thread at a time.
class Landing {
 public:
  // `bytes`: room on the host for gradients that are to be added to sums. `crossing`: the ring, of
  // at least 512 bytes when gradients are stored or added; it must outlive this.
  Landing(memory::Memory& memory, std::int64_t bytes, const memory::Buffer& crossing);
  // Waits for what is on its way.
  ~Landing();

  // The bytes of `gradient`, contiguous on the device, to `to`.
  void Store(const at::Tensor& gradient, std::byte* to);
  // sums[i] += gradient[i], or with `is_first` 0 + gradient[i], whatever was there. A thread adds
  // when the bytes have landed, in the order of the calls, and calls `done`, if there is one, with
  // the squares of the new sums.
  using Done = std::function<void(const kernels::SquareSum& squares)>;
  void Add(const at::Tensor& gradient, DType dtype, float* sums, bool is_first = false,
           Done done = {});
  // The same for `numel` elements that the device can read, which stay as they are until Mark() is
  // done.
  void AddSlice(const std::byte* slice, DType dtype, std::int64_t numel, float* sums);
  // After all copies so far.
  torchx::Event Mark() const { return copies_.Mark(); }
  // Everything has arrived. Throws what a thread met.
  void Finish();

 private:
  struct Place {  // of the ring, until its copy is done
    std::int64_t begin;
    std::int64_t end;
    torchx::Event done;
  };
  struct Addition {
    torchx::Event landed;
    std::int64_t begin;  // in buffer_
    std::int64_t end;
    DType dtype;
    float* sums;
    std::int64_t numel;
    bool is_first;
    Done done;
  };

  void Copy(const at::Tensor& gradient, std::byte* to);
  std::int64_t TakeCrossing(std::int64_t bytes, const torchx::Queue& operators);
  void AddCopied(std::int64_t bytes, Addition addition,
                 const std::function<void(std::byte* to)>& copy);
  std::int64_t TakeRoom(std::int64_t bytes, std::unique_lock<std::mutex>& lock);
  void AddLanded();
  void AddNow(const Addition& addition) const;

  const torchx::Queue copies_;
  const c10::Device device_;
  memory::Buffer buffer_;
  const memory::Buffer& crossing_;
  std::deque<Place> places_;  // in the order in which they were taken
  std::int64_t next_crossing_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Addition> additions_;  // in the order of their places
  std::int64_t next_ = 0;           // where the next place begins
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread adder_;
};

}  // namespace ullage::grads
