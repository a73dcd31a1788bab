#include "optim/gradient_norm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/norm.h"
#include "optim/parallel_ranges.h"

namespace ullage::optim {
namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kGrain = 1 << 18;  // elements for one thread

// What each rank contributes.
struct Message {
  std::array<std::int64_t, kernels::ExactSum::kWords> words;
  std::int64_t overflowed;  // index of a parameter, or kNone
};

}  // namespace

GradientNorm MeasureGradient(const plan::Plan& plan, const grads::GradientReducer& gradients,
                             comm::Comm& comm, std::uint32_t item) {
  kernels::ExactSum sum;
  std::int64_t overflowed = kNone;
  std::mutex mutex;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    const float* sums = gradients.Sums(unit);
    if (!plan.units[u].unit.trainable || sums == nullptr) continue;
    const std::int64_t numel = plan.units[u].unit.slice_numel;
    ForRanges(0, numel, kGrain, [&](std::int64_t first, std::int64_t last) {
      kernels::SquareSum part;
      kernels::AddSumOfSquares(sums + first, last - first, part);
      std::lock_guard lock(mutex);
      sum.Add(part.sum);
      if (part.first_non_finite >= 0) {
        const int parameter = gradients.ParameterAt(unit, first + part.first_non_finite);
        overflowed = std::min(overflowed, std::int64_t{parameter});
      }
    });
  }

  Message mine{};
  std::ranges::copy(sum.words(), mine.words.begin());
  mine.overflowed = overflowed;
  std::vector<Message> all(static_cast<std::size_t>(comm.world_size()), mine);
  comm.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), item);

  kernels::ExactSum total;
  for (const Message& message : all) {
    kernels::ExactSum part;
    std::ranges::copy(message.words, part.words().begin());
    total.Add(part);
    overflowed = std::min(overflowed, message.overflowed);
  }
  GradientNorm norm;
  norm.sum_of_squares = total.ToDouble();
  if (overflowed != kNone) {
    norm.is_finite = false;
    norm.overflowed = static_cast<int>(overflowed);
  }
  return norm;
}

}  // namespace ullage::optim
