#include "grads/landing.h"

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "kernels/accumulate.h"
#include "layout/unit.h"

namespace ullage::grads {
namespace {

// Bytes of gradients that may wait for their copies: beyond them the copies cannot keep up, and
// holding more would only cost device memory.
constexpr std::int64_t kMaxFlying = std::int64_t{512} << 20;
constexpr std::int64_t kGrain = 1 << 18;  // elements for one thread

}  // namespace

Landing::Landing(memory::Memory& memory, std::int64_t bytes)
    : copies_(torchx::Queue::Beside(memory.device())),
      device_(memory.device()),
      buffer_(memory.Allocate(memory::Tag::kBuckets, {bytes, 0}, plan::Tier::kHost)) {
  if (buffer_.data() != nullptr) adder_ = std::thread([this] { AddLanded(); });
}

Landing::~Landing() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (adder_.joinable()) adder_.join();
  copies_.Finish();
}

void Landing::Copy(const at::Tensor& gradient, std::byte* to) {
  const auto bytes = static_cast<std::int64_t>(gradient.nbytes());
  LetGo(std::max<std::int64_t>(kMaxFlying - bytes, 0));
  copies_.After(torchx::Queue::OfOperators(device_).Mark());
  copies_.Copy(to, gradient.const_data_ptr(), bytes);
  flights_.push_back({gradient, copies_.Mark()});
  flying_bytes_ += bytes;
}

void Landing::LetGo(std::int64_t allowed_bytes) {
  while (!flights_.empty()) {
    if (flying_bytes_ > allowed_bytes) {
      flights_.front().done.Wait();
    } else if (!flights_.front().done.IsDone()) {
      return;
    }
    flying_bytes_ -= static_cast<std::int64_t>(flights_.front().gradient.nbytes());
    flights_.pop_front();
  }
}

void Landing::Store(const at::Tensor& gradient, std::byte* to) {
  Copy(gradient, to);
}

void Landing::Add(const at::Tensor& gradient, DType dtype, float* sums) {
  AddCopied(static_cast<std::int64_t>(gradient.nbytes()), dtype, gradient.numel(), sums,
            [&](std::byte* to) { Copy(gradient, to); });
}

void Landing::AddSlice(const std::byte* slice, DType dtype, std::int64_t numel, float* sums) {
  const std::int64_t bytes = numel * ElementBytes(dtype);
  AddCopied(bytes, dtype, numel, sums, [&](std::byte* to) { copies_.Copy(to, slice, bytes); });
}

void Landing::AddCopied(std::int64_t used, DType dtype, std::int64_t numel, float* sums,
                        const std::function<void(std::byte* to)>& copy) {
  const std::int64_t bytes = layout::RoundUp(used, layout::kAlignment);
  std::unique_lock lock(mutex_);
  const std::int64_t begin = TakeRoom(bytes, lock);
  lock.unlock();
  copy(buffer_.data() + begin);
  lock.lock();
  additions_.push_back({copies_.Mark(), begin, begin + bytes, dtype, sums, numel});
  lock.unlock();
  changed_.notify_all();
}

// Places follow each other and begin anew at the end of the buffer, over those that are done.
std::int64_t Landing::TakeRoom(std::int64_t bytes, std::unique_lock<std::mutex>& lock) {
  const std::int64_t begin = next_ + bytes <= buffer_.size() ? next_ : 0;
  const auto is_free = [&] {
    return error_ != nullptr || std::ranges::none_of(additions_, [&](const Addition& addition) {
             return addition.begin < begin + bytes && begin < addition.end;
           });
  };
  changed_.wait(lock, is_free);
  if (error_ != nullptr) std::rethrow_exception(error_);
  next_ = begin + bytes;
  return begin;
}

void Landing::AddLanded() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !additions_.empty(); });
    if (additions_.empty()) return;
    Addition& addition = additions_.front();  // stays while this thread does not remove it
    lock.unlock();
    std::exception_ptr error;
    try {
      addition.landed.Wait();
      const std::byte* landed = buffer_.data() + addition.begin;
      ParallelFor(0, addition.numel, kGrain, [&](std::int64_t first, std::int64_t last) {
        kernels::AddToFloat(addition.dtype, landed + first * ElementBytes(addition.dtype),
                            addition.sums + first, last - first);
      });
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr && error_ == nullptr) error_ = error;
    additions_.pop_front();
    changed_.notify_all();
  }
}

void Landing::Finish() {
  copies_.Finish();
  LetGo(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return additions_.empty(); });
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace ullage::grads
