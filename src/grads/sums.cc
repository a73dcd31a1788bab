#include "grads/sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/parallel.h"
#include "kernels/accumulate.h"
#include "kernels/device.h"

namespace ullage::grads {
namespace {

// Elements that are added from every rank before the next ones: they stay in the cache.
constexpr std::int64_t kTileNumel = 16 << 10;

}  // namespace

Sums::Sums(const plan::Plan& plan, const plan::WindowPlan& window_plan, int rank,
           comm::TieredWindow& window, memory::Memory& memory)
    : plan_(plan),
      window_plan_(window_plan),
      window_(window),
      memory_(memory),
      own_(plan.units.size()),
      promoted_(plan.units.size()),
      came_(plan.parameters.size()) {
  bool cross = false;  // from the device to the host
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::BufferBytes bytes =
        plan::GradientBytes(plan.units[u], rank, plan.sums_dtype(static_cast<int>(u)));
    const plan::Tier tier = plan.units[u].home;
    if (window_plan.sums[u].exists()) {
      claims_.push_back(memory.Note(memory::Tag::kGradients, bytes, tier));
    } else {
      own_[u] = memory.Allocate(memory::Tag::kGradients, bytes, tier);
    }
    cross |= plan.units[u].unit.trainable && tier == plan::Tier::kHost && memory.is_cuda();
  }
  if (memory.is_cuda()) {
    batch_.emplace([&memory](const GradientBatch::Work& work) {
      if (memory.is_dry()) return;
      const torchx::Queue operators = torchx::Queue::OfOperators(memory.device());
      if (!work.copies.empty()) kernels::device::Copy(work.copies, operators.stream());
      if (!work.additions.empty()) kernels::device::AddToFloat(work.additions, operators.stream());
    });
  }
  if (plan.crossing_bytes > 0) {
    crossing_ = memory.Allocate(memory::Tag::kBuckets, {plan.crossing_bytes, 0});
  }
  if (cross) landing_ = std::make_unique<Landing>(memory, plan.landing_bytes, crossing_);
}

UnitSums Sums::Of(int unit) const {
  const auto u = static_cast<std::size_t>(unit);
  const DType dtype = promoted_[u] ? DType::kFloat32 : plan_.sums_dtype(unit);
  if (!window_plan_.sums[u].exists()) return {dtype, own_[u].data()};
  return {dtype, window_.At(window_plan_.sums[u])};
}

void Sums::Add(int parameter, int unit, const layout::Member& member, const at::Tensor& gradient) {
  const auto p = static_cast<std::size_t>(parameter);
  const DType dtype = plan_.parameters[p].dtype;
  const bool is_first = !came_[p];
  came_[p] = true;
  if (!is_first && Of(unit).dtype != DType::kFloat32) Promote(parameter, unit);
  const UnitSums sums = Of(unit);
  const at::Tensor dense = gradient.contiguous();
  const bool on_device = memory_.OnCuda(TierOf(unit));
  if (memory_.is_dry()) {
    const auto bytes = static_cast<std::int64_t>(dense.nbytes());
    if (on_device) {
      HoldDry(parameter, dense, sums.dtype);
      const std::int64_t passes = sums.dtype == DType::kFloat32 ? 2 : 1;
      memory_.ledger().Passed(memory::Traffic::kGradients,
                              bytes + passes * ElementBytes(sums.dtype) * dense.numel());
    } else {
      memory_.ledger().Passed(memory::Traffic::kDown, bytes);
      if (sums.dtype == DType::kFloat32) {
        const std::int64_t passes = is_first && IsOverwritten(unit) ? 1 : 2;
        memory_.ledger().Passed(memory::Traffic::kHostSums, bytes + passes * 4 * dense.numel());
      }
    }
    return;
  }
  if (sums.dtype != DType::kFloat32) {
    std::byte* to = sums.data + member.offset * ElementBytes(dtype);
    if (on_device) return batch_->Copy(dense, dtype, to);
    if (memory_.is_cuda() && listener_.came) {
      listener_.came(parameter, dtype, dense.const_data_ptr(), member.numel);
    }
    if (landing_ != nullptr) return landing_->Store(dense, to);
    std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
    return;
  }
  float* to = reinterpret_cast<float*>(sums.data) + member.offset;
  if (on_device) {
    batch_->Add(dense, dtype, to);
  } else if (landing_ != nullptr) {
    Landing::Done done;
    if (is_last_pass_ && listener_.summed) {
      done = [this, parameter](const auto& squares) { listener_.summed(parameter, squares); };
    }
    landing_->Add(dense, dtype, to, is_first && IsOverwritten(unit), std::move(done));
  } else {
    kernels::AddToFloat(dtype, dense.const_data_ptr(), to, member.numel);
  }
}

// Gradients wait in a dry run as they do in a run. Their targets need only differ.
void Sums::HoldDry(int parameter, const at::Tensor& gradient, DType sums_dtype) {
  const DType dtype = plan_.parameters[static_cast<std::size_t>(parameter)].dtype;
  auto* const target = reinterpret_cast<float*>((static_cast<std::uintptr_t>(parameter) + 1) << 40);
  if (sums_dtype == DType::kFloat32) {
    batch_->Add(gradient, dtype, target);
  } else {
    batch_->Copy(gradient, dtype, target);
  }
}

void Sums::AddSlices(int index, const std::vector<const std::byte*>& slices,
                     const torchx::Queue& queue) {
  const layout::Unit& unit = plan_.units[static_cast<std::size_t>(index)].unit;
  auto* const sums = reinterpret_cast<float*>(Of(index).data);
  if (memory_.OnCuda(TierOf(index))) {
    return kernels::device::AddSlicesToFloat(unit.dtype, slices, sums, unit.slice_numel,
                                             queue.stream());
  }
  if (landing_ != nullptr) {
    for (const std::byte* slice : slices) {
      landing_->AddSlice(slice, unit.dtype, unit.slice_numel, sums);
    }
    return queue.After(landing_->Mark());
  }
  const std::int64_t step = std::min(plan_.bucket_numel, kTileNumel);
  for (std::int64_t first = 0; first < unit.slice_numel; first += step) {
    const std::int64_t count = std::min(step, unit.slice_numel - first);
    for (const std::byte* slice : slices) {
      kernels::AddToFloat(unit.dtype, slice + first * ElementBytes(unit.dtype), sums + first,
                          count);
    }
  }
}

void Sums::Flush() {
  if (batch_.has_value()) batch_->Flush();
}

void Sums::DropHeld() {
  if (batch_.has_value()) batch_->Drop();
}

void Sums::NoteCame(const std::vector<bool>& came) {
  for (std::size_t p = 0; p < came.size(); ++p) came_[p] = came_[p] || came[p];
}

bool Sums::IsSteady() const {
  const bool are_16_bit = plan_.sums_in_weight_dtype && plan_.weight_dtype != DType::kFloat32;
  return !are_16_bit || std::ranges::none_of(came_, [](bool came) { return came; });
}

// A second gradient has come for `parameter` of a unit that keeps them as they came.
void Sums::Promote(int parameter, int unit) {
  const auto u = static_cast<std::size_t>(unit);
  const layout::Unit& layout = plan_.units[u].unit;
  if (!std::exchange(warned_of_promotion_, true)) {
    std::int64_t more = 0;
    for (const plan::UnitPlan& other : plan_.units) {
      if (!other.unit.trainable) continue;
      more += other.unit.slice_numel * (4 - ElementBytes(other.unit.dtype));
    }
    LogWarn(
        "grads",
        fmt::format("parameter '{}' got a second gradient in a step of one micro-step: its "
                    "unit, and each other that this happens to, has fp32 sums from now on, "
                    "with all of them {} more",
                    plan_.parameters[static_cast<std::size_t>(parameter)].name, FormatBytes(more)));
  }
  Flush();
  const plan::Tier tier = TierOf(unit);
  memory::Buffer wide = memory_.Allocate(
      memory::Tag::kGradients, plan::GradientBytes(plan_.units[u], 0, DType::kFloat32), tier);
  if (landing_ != nullptr && tier == plan::Tier::kHost) {
    landing_ = nullptr;  // finishes
    std::int64_t room = 0;
    for (const plan::UnitPlan& other : plan_.units) {
      room = std::max(room, 2 * plan::StagingBytes(other.unit, plan_.world_size));
    }
    landing_ = std::make_unique<Landing>(memory_, room, crossing_);
  }
  for (const layout::Member& member : layout.members) {
    if (!came_[static_cast<std::size_t>(member.parameter)] || memory_.is_dry()) continue;
    const std::byte* from = own_[u].data() + member.offset * ElementBytes(layout.dtype);
    float* to = wide.as<float>() + member.offset;
    if (memory_.OnCuda(tier)) {
      kernels::device::AddToFloat(layout.dtype, from, to, member.numel,
                                  torchx::Queue::OfOperators(memory_.device()).stream());
    } else {
      kernels::AddToFloat(layout.dtype, from, to, member.numel);
    }
  }
  own_[u] = std::move(wide);
  promoted_[u] = true;
  ++layout_;
  if (listener_.restart) listener_.restart(unit);
}

void Sums::Complete() {
  Flush();
  if (landing_ != nullptr) landing_->Finish();
  if (memory_.is_dry()) return;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    const layout::Unit& unit = plan_.units[u].unit;
    const UnitSums sums = Of(static_cast<int>(u));
    if (!unit.trainable || !IsOverwritten(static_cast<int>(u))) continue;
    const bool on_device = memory_.OnCuda(plan_.units[u].home);
    const torchx::Queue queue =
        on_device ? torchx::Queue::OfOperators(memory_.device()) : torchx::Queue();
    for (const layout::Member& member : unit.members) {
      if (came_[static_cast<std::size_t>(member.parameter)]) continue;
      queue.Zero(sums.data + member.offset * ElementBytes(sums.dtype),
                 member.numel * ElementBytes(sums.dtype));
    }
  }
}

void Sums::Clear() {
  Flush();  // of a pass that an error ended
  came_.assign(came_.size(), false);
  passes_ = 0;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    if (!plan_.IsUpdatedBeside(static_cast<int>(u))) ClearUnit(static_cast<int>(u));
  }
}

void Sums::ClearUnit(int index) {
  const plan::UnitPlan& unit = plan_.units[static_cast<std::size_t>(index)];
  const UnitSums sums = Of(index);
  // What is overwritten is so, or filled with zeros by Complete.
  if (memory_.is_dry() || !unit.unit.trainable || IsOverwritten(index)) return;
  const std::int64_t bytes = 4 * unit.unit.slice_numel;
  if (memory_.OnCuda(unit.home)) {
    torchx::Queue::OfOperators(memory_.device()).Zero(sums.data, bytes);
    return;
  }
  ParallelFor(0, bytes, 1 << 20, [&](std::int64_t first, std::int64_t last) {
    std::memset(sums.data + first, 0, static_cast<std::size_t>(last - first));
  });
}

}  // namespace ullage::grads
