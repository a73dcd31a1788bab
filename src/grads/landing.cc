#include "grads/landing.h"

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "kernels/accumulate.h"
#include "layout/unit.h"

namespace ullage::grads {
namespace {

constexpr std::int64_t kRingGrain = 512;  // bytes
constexpr std::int64_t kGrain = 1 << 18;  // elements for one thread
constexpr std::int64_t kTile = 1 << 14;   // elements that stay in the cache

}  // namespace

Landing::Landing(memory::Memory& memory, std::int64_t bytes, const memory::Buffer& crossing)
    : copies_(torchx::Queue::Beside(memory.device())),
      device_(memory.device()),
      buffer_(memory.Allocate(memory::Tag::kBuckets, {bytes, 0}, plan::Tier::kHost)),
      crossing_(crossing) {
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
  const auto operators = torchx::Queue::OfOperators(device_);
  const auto* from = static_cast<const std::byte*>(gradient.const_data_ptr());
  const auto bytes = static_cast<std::int64_t>(gradient.nbytes());
  // In pieces, so that one is copied while the next moves to the ring.
  const std::int64_t most = std::max(crossing_.size() / 4 / kRingGrain * kRingGrain, kRingGrain);
  for (std::int64_t first = 0; first < bytes; first += most) {
    const std::int64_t count = std::min(most, bytes - first);
    const std::int64_t begin = TakeCrossing(count, operators);
    operators.Copy(crossing_.data() + begin, from + first, count);
    copies_.After(operators.Mark());
    copies_.Copy(to + first, crossing_.data() + begin, count);
    places_.push_back({begin, begin + count, copies_.Mark()});
  }
}

// Places follow each other and begin anew at the end of the ring, so that the first ones are in the
// way first. Copies are done in the order of the places: the last in the way is the one to wait
// for.
std::int64_t Landing::TakeCrossing(std::int64_t bytes, const torchx::Queue& operators) {
  const std::int64_t taken = layout::RoundUp(bytes, kRingGrain);
  torchx::Event last;
  const auto remove_while = [&](const auto& is_in_the_way) {
    while (!places_.empty() && is_in_the_way(places_.front())) {
      last = std::move(places_.front().done);
      places_.pop_front();
    }
  };
  if (next_crossing_ + taken > crossing_.size()) {
    remove_while([this](const Place& place) { return place.begin >= next_crossing_; });
    next_crossing_ = 0;
  }
  const std::int64_t begin = std::exchange(next_crossing_, next_crossing_ + taken);
  remove_while(
      [&](const Place& place) { return place.begin < begin + taken && begin < place.end; });
  operators.After(last);
  return begin;
}

void Landing::Store(const at::Tensor& gradient, std::byte* to) {
  Copy(gradient, to);
}

void Landing::Add(const at::Tensor& gradient, DType dtype, float* sums, bool is_first, Done done) {
  AddCopied(static_cast<std::int64_t>(gradient.nbytes()),
            {{}, 0, 0, dtype, sums, gradient.numel(), is_first, std::move(done)},
            [&](std::byte* to) { Copy(gradient, to); });
}

void Landing::AddSlice(const std::byte* slice, DType dtype, std::int64_t numel, float* sums) {
  const std::int64_t bytes = numel * ElementBytes(dtype);
  AddCopied(bytes, {{}, 0, 0, dtype, sums, numel, /*is_first=*/false, {}},
            [&](std::byte* to) { copies_.Copy(to, slice, bytes); });
}

void Landing::AddCopied(std::int64_t used, Addition addition,
                        const std::function<void(std::byte* to)>& copy) {
  const std::int64_t bytes = layout::RoundUp(used, layout::kAlignment);
  std::unique_lock lock(mutex_);
  addition.begin = TakeRoom(bytes, lock);
  addition.end = addition.begin + bytes;
  lock.unlock();
  copy(buffer_.data() + addition.begin);
  addition.landed = copies_.Mark();
  lock.lock();
  additions_.push_back(std::move(addition));
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
      AddNow(addition);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr && error_ == nullptr) error_ = error;
    additions_.pop_front();
    changed_.notify_all();
  }
}

void Landing::AddNow(const Addition& addition) const {
  const std::byte* landed = buffer_.data() + addition.begin;
  const std::int64_t element_bytes = ElementBytes(addition.dtype);
  kernels::SquareSum all;
  std::mutex of_all;
  ParallelFor(0, addition.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::SquareSum squares;
    // Sums are measured while they are in the cache.
    for (std::int64_t first = begin; first < end; first += kTile) {
      const std::int64_t count = std::min(kTile, end - first);
      float* const sums = addition.sums + first;
      (addition.is_first ? kernels::SetFloat : kernels::AddToFloat)(
          addition.dtype, landed + first * element_bytes, sums, count);
      if (addition.done) kernels::AddSumOfSquares(DType::kFloat32, sums, count, squares);
    }
    if (!addition.done) return;
    const std::lock_guard lock(of_all);
    all.sum.Add(squares.sum);
    if (squares.first_non_finite >= 0) all.first_non_finite = squares.first_non_finite;
  });
  if (addition.done) addition.done(all);
}

void Landing::Finish() {
  copies_.Finish();
  places_.clear();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return additions_.empty(); });
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace ullage::grads
