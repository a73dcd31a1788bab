#include "optim/gradient_norm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/device.h"
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

struct NormMeter::Part {
  kernels::ExactSum sum;
  std::int64_t overflowed = kNone;
};

NormMeter::NormMeter(const plan::Plan& plan, grads::GradientReducer& gradients, comm::Comm& comm,
                     memory::Memory& memory)
    : plan_(plan),
      gradients_(gradients),
      comm_(comm),
      memory_(memory),
      read_when_complete_(plan.units.size(), !plan.sums_in_weight_dtype),
      summed_(plan.parameters.size()) {
  if (!memory.is_cuda()) {
    read_when_complete_.assign(plan.units.size(), true);
    return;
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].unit.dtype == DType::kFloat32 || plan.units[u].home == plan::Tier::kDevice) {
      read_when_complete_[u] = true;
    }
  }
  static_assert(sizeof(kernels::device::SquareSumWords) == plan::kNormResultBytes);
  on_device_ = memory.Allocate(memory::Tag::kBuckets, plan::NormBytes(plan));
  on_host_ = memory.Allocate(memory::Tag::kBuckets, plan::NormBytes(plan), plan::Tier::kHost);
  if (memory.is_dry()) return;
  Clear();
  gradients.Listen(
      {[this](int parameter, DType dtype, const void* gradient, std::int64_t numel) {
         Came(parameter, dtype, gradient, numel);
       },
       [this](int unit) { Restart(unit); },
       [this](int parameter, const kernels::SquareSum& squares) { Summed(parameter, squares); }});
}

void NormMeter::Clear() {
  kernels::device::ClearSquareSums(
      Results(), static_cast<std::int64_t>(plan_.parameters.size() + plan_.units.size()),
      Operators().stream());
}

void NormMeter::Came(int parameter, DType dtype, const void* gradient, std::int64_t numel) {
  kernels::device::AddSumOfSquares(dtype, gradient, numel, Results() + parameter,
                                   Operators().stream());
}

void NormMeter::Summed(int parameter, const kernels::SquareSum& squares) {
  const std::lock_guard lock(of_summed_);
  summed_[Index(parameter)] = squares;
}

void NormMeter::Restart(int unit) {
  read_when_complete_[Index(unit)] = true;
  for (const layout::Member& member : plan_.units[Index(unit)].unit.members) {
    const std::lock_guard lock(of_summed_);
    summed_[Index(member.parameter)].reset();
    kernels::device::ClearSquareSums(Results() + member.parameter, 1, Operators().stream());
  }
}

GradientNorm NormMeter::Measure(std::uint32_t item) {
  Part part;
  for (std::size_t u = 0; u < plan_.units.size() && !memory_.is_dry(); ++u) {
    const int unit = static_cast<int>(u);
    if (!plan_.units[u].unit.trainable || !read_when_complete_[u]) continue;
    const grads::UnitSums sums = gradients_.Of(unit);
    if (memory_.OnCuda(plan_.units[u].home)) {
      kernels::device::AddSumOfSquares(sums.dtype, sums.data, plan_.units[u].unit.slice_numel,
                                       Results() + plan_.parameters.size() + u,
                                       Operators().stream());
    } else {
      AddUnitOnHost(unit, part);
    }
  }
  std::ranges::fill(summed_, std::nullopt);
  if (memory_.is_cuda() && !memory_.is_dry()) AddFromDevice(part);

  Message mine{};
  std::ranges::copy(part.sum.words(), mine.words.begin());
  mine.overflowed = part.overflowed;
  std::vector<Message> all(static_cast<std::size_t>(comm_.world_size()), mine);
  comm_.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), item);

  Part total;
  for (const Message& message : all) {
    total.sum.Add(kernels::ExactSum::FromWords(message.words));
    total.overflowed = std::min(total.overflowed, message.overflowed);
  }
  GradientNorm norm;
  norm.sum_of_squares = total.sum.ToDouble();
  if (total.overflowed != kNone) {
    norm.is_finite = false;
    norm.overflowed = static_cast<int>(total.overflowed);
  }
  return norm;
}

void NormMeter::AddUnitOnHost(int unit, Part& part) const {
  const layout::Unit& layout = plan_.units[Index(unit)].unit;
  const auto is_summed = [this](const layout::Member& member) {
    return summed_[Index(member.parameter)].has_value();
  };
  if (std::ranges::none_of(layout.members, is_summed)) {
    return AddRangeOnHost(unit, 0, layout.slice_numel, part);
  }
  for (const layout::Member& member : layout.members) {
    if (!is_summed(member)) {
      AddRangeOnHost(unit, member.offset, member.offset + member.numel, part);
      continue;
    }
    const kernels::SquareSum& squares = *summed_[Index(member.parameter)];
    part.sum.Add(squares.sum);
    if (squares.first_non_finite < 0) continue;
    part.overflowed = std::min<std::int64_t>(part.overflowed, member.parameter);
  }
}

void NormMeter::AddRangeOnHost(int unit, std::int64_t begin, std::int64_t end, Part& part) const {
  const grads::UnitSums sums = gradients_.Of(unit);
  std::mutex mutex;
  ForRanges(begin, end, kGrain, [&](std::int64_t first, std::int64_t last) {
    kernels::SquareSum squares;
    kernels::AddSumOfSquares(sums.dtype, sums.data + first * ElementBytes(sums.dtype), last - first,
                             squares);
    std::lock_guard lock(mutex);
    part.sum.Add(squares.sum);
    if (squares.first_non_finite < 0) return;
    const std::int64_t at = first + squares.first_non_finite;
    part.overflowed = std::min<std::int64_t>(part.overflowed, gradients_.ParameterAt(unit, at));
  });
}

void NormMeter::AddFromDevice(Part& part) {
  const torchx::Queue operators = Operators();
  operators.Copy(on_host_.data(), on_device_.data(), on_device_.size());
  Clear();
  operators.Finish();
  const auto* results = on_host_.as<const kernels::device::SquareSumWords>();
  const std::size_t parameters = plan_.parameters.size();
  for (std::size_t i = 0; i < parameters + plan_.units.size(); ++i) {
    part.sum.Add(kernels::ExactSum::FromWords(results[i].words));
    const std::int64_t at = results[i].first_non_finite;
    if (at == kernels::device::SquareSumWords::kNone) continue;
    const auto parameter = i < parameters
                               ? static_cast<std::int64_t>(i)
                               : gradients_.ParameterAt(static_cast<int>(i - parameters), at);
    part.overflowed = std::min(part.overflowed, parameter);
  }
}

}  // namespace ullage::optim
