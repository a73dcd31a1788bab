#include "optim/slice_optimizer.h"

#include <algorithm>

#include "kernels/cast.h"
#include "kernels/device.h"
#include "kernels/write_back.h"
#include "optim/parallel_ranges.h"

namespace ullage::optim {
namespace {

constexpr std::int64_t kGrain = 1 << 16;  // elements for one thread

// `part` from element `first` on, `count` elements of it.
kernels::UpdatePart Slice(const kernels::UpdatePart& part, std::int64_t first, std::int64_t count) {
  const auto skip = [first](float* moment) { return moment == nullptr ? nullptr : moment + first; };
  kernels::UpdatePart slice = part;
  slice.weights = kernels::Skip(part.weights, first);
  slice.gradient =
      static_cast<const std::byte*>(part.gradient) + first * ElementBytes(part.gradient_dtype);
  slice.first_moment = skip(part.first_moment);
  slice.second_moment = skip(part.second_moment);
  slice.n = count;
  return slice;
}

template <typename Update>
void OnHost(std::span<const kernels::UpdatePart> parts, const Update& update) {
  for (const kernels::UpdatePart& part : parts) {
    ForRanges(0, part.n, kGrain, [&](std::int64_t first, std::int64_t last) {
      update(Slice(part, first, last - first));
    });
  }
}

}  // namespace

SliceOptimizer::SliceOptimizer(const plan::Plan& plan, const OptimizerSettings& settings,
                               const Groups& groups, params::ParameterStore& weights,
                               grads::GradientReducer& gradients, DiskState& disk, comm::Comm& comm,
                               memory::Memory& memory)
    : plan_(plan),
      settings_(settings),
      groups_(groups),
      weights_(weights),
      gradients_(gradients),
      disk_(disk),
      comm_(comm),
      memory_(memory),
      units_(plan.units.size()),
      tile_(memory.Allocate(memory::Tag::kBuckets, {plan.sums_tile_bytes, 0})) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    UnitState& state = units_[u];
    if (unit.state == plan::StateShare::kNone) continue;
    state.numel = plan.HeldNumel(static_cast<int>(u));
    state.segments = MakeSegments(static_cast<int>(u));
    if (unit.state_on_disk) continue;
    state.extension = memory.Allocate(
        memory::Tag::kMaster, plan::MasterBytes(unit, comm.rank(), plan.world_size), unit.home);
    state.moments = memory.Allocate(
        memory::Tag::kMoments, plan::MomentBytes(unit, comm.rank(), plan.world_size, plan.moments),
        unit.home);
  }
}

std::vector<SliceOptimizer::Segment> SliceOptimizer::MakeSegments(int index) const {
  const plan::UnitPlan& plan = unit_plan(index);
  std::vector<layout::Piece> pieces;
  if (plan.state == plan::StateShare::kWhole) {
    for (const layout::Member& member : plan.unit.members) {
      pieces.push_back({member.parameter, 0, member.offset, member.numel});
    }
  } else {
    pieces = layout::PiecesOfSlice(plan.unit, comm_.rank());
  }
  std::vector<Segment> segments;
  for (const layout::Piece& piece : pieces) {
    const int group = groups_.of_parameter[static_cast<std::size_t>(piece.parameter)];
    const std::int64_t end = piece.slice_offset + piece.numel;
    // The padding between two pieces is zero and stays so, hence one range can cover both.
    if (!segments.empty() && segments.back().group == group) {
      segments.back().end = end;
    } else {
      segments.push_back({piece.slice_offset, end, group});
    }
  }
  return segments;
}

kernels::WeightRange SliceOptimizer::Range(int index, std::int64_t first) const {
  const memory::Buffer& extension = units_[static_cast<std::size_t>(index)].extension;
  return kernels::Skip({unit_plan(index).unit.dtype, weights_.Home(index), extension.data()},
                       first);
}

void SliceOptimizer::ForEachRange(
    int index, std::int64_t first, std::int64_t numel, DiskAccess access,
    const std::function<void(const kernels::WeightRange&, std::int64_t, std::int64_t)>& body) {
  kernels::WeightRange range = Range(index, first);
  if (!unit_plan(index).state_on_disk || MasterExtensionBytes(range.dtype) == 0) {
    return body(range, 0, numel);
  }
  disk_.Visit(index, DiskArray::kExtension, first, numel, access,
              [&](std::int64_t at, std::int64_t count, std::byte* extension) {
                range = Range(index, at);
                range.extension = extension;
                body(range, at - first, count);
              });
}

void SliceOptimizer::StoreMaster(int index, std::int64_t first, std::span<const float> values) {
  weights_.AwaitUpdate(index);
  const kernels::WeightRange range = Range(index, first);
  const auto numel = static_cast<std::int64_t>(values.size());
  const bool frozen = unit_plan(index).state == plan::StateShare::kNone;
  if (!OnCuda(index)) {
    if (frozen) {
      kernels::Convert(DType::kFloat32, values.data(), range.dtype, range.weight, numel);
    } else {
      ForEachRange(index, first, numel, DiskAccess::kReplace,
                   [&](const kernels::WeightRange& part, std::int64_t begin, std::int64_t count) {
                     kernels::StoreMaster(part, values.data() + begin, count);
                   });
    }
    return;
  }
  const memory::Buffer tile = memory_.Allocate(memory::Tag::kData, {4 * numel, 0});
  const torchx::Queue queue = torchx::Queue::OfOperators(memory_.device());
  queue.Copy(tile.data(), values.data(), 4 * numel);
  if (frozen) {
    kernels::device::Convert(DType::kFloat32, tile.data(), range.dtype, range.weight, numel,
                             queue.stream());
  } else {
    kernels::device::StoreMaster(range, tile.as<float>(), numel, queue.stream());
  }
  queue.Finish();
}

void SliceOptimizer::LoadMaster(int index, std::int64_t first, std::span<float> values) {
  weights_.AwaitUpdate(index);
  const kernels::WeightRange range = Range(index, first);
  const auto numel = static_cast<std::int64_t>(values.size());
  const bool frozen = unit_plan(index).state == plan::StateShare::kNone;
  if (!OnCuda(index)) {
    if (frozen) {
      kernels::Convert(range.dtype, range.weight, DType::kFloat32, values.data(), numel);
    } else {
      ForEachRange(index, first, numel, DiskAccess::kRead,
                   [&](const kernels::WeightRange& part, std::int64_t begin, std::int64_t count) {
                     kernels::LoadMaster(part, values.data() + begin, count);
                   });
    }
    return;
  }
  const memory::Buffer tile = memory_.Allocate(memory::Tag::kData, {4 * numel, 0});
  const torchx::Queue queue = torchx::Queue::OfOperators(memory_.device());
  if (frozen) {
    kernels::device::Convert(range.dtype, range.weight, DType::kFloat32, tile.data(), numel,
                             queue.stream());
  } else {
    kernels::device::LoadMaster(range, tile.as<float>(), numel, queue.stream());
  }
  queue.Copy(values.data(), tile.data(), 4 * numel);
  queue.Finish();
}

StateArrays SliceOptimizer::Arrays(int index) const {
  const UnitState& state = units_[static_cast<std::size_t>(index)];
  StateArrays arrays;
  arrays.weights = weights_.Home(index);
  arrays.extension = state.extension.data();
  arrays.moments = state.moments.as<float>();
  arrays.moment_numel = state.numel;
  arrays.gradients = gradients_.Of(index);
  return arrays;
}

void SliceOptimizer::Update(int index, const StepParameters& step) {
  const plan::UnitPlan& plan = unit_plan(index);
  const StateArrays arrays = Arrays(index);
  const auto update = [&](std::int64_t begin, std::int64_t end, grads::UnitSums sums) {
    if (memory_.is_dry()) return;
    // The gradients given are those of `begin` and after.
    StateArrays part = From(index, arrays, begin);
    part.gradients = sums;
    UpdateRange(index, begin, end, part, step, OnCuda(index), Stream());
  };
  const grads::UnitSums own = gradients_.Of(index);
  if (plan.state == plan::StateShare::kSlice || plan_.world_size == 1) {
    return update(0, plan.unit.slice_numel, own);
  }
  const std::int64_t tile_numel = tile_.size() / 4;
  for (int owner = 0; owner < plan_.world_size; ++owner) {
    const std::int64_t begin = owner * plan.unit.slice_numel;
    if (owner == comm_.rank()) {
      update(begin, begin + plan.unit.slice_numel, own);
      continue;
    }
    for (std::int64_t first = 0; first < plan.unit.slice_numel; first += tile_numel) {
      const std::int64_t count = std::min(tile_numel, plan.unit.slice_numel - first);
      gradients_.ReadSums(owner, index, first, count, tile_.as<float>());
      update(begin + first, begin + first + count, {DType::kFloat32, tile_.data()});
    }
  }
}

void SliceOptimizer::UpdateOnDisk(const StepParameters& step,
                                  const std::function<void(int unit)>& done) {
  if (memory_.is_dry()) {
    for (std::size_t u = 0; u < plan_.units.size(); ++u) {
      if (plan_.units[u].state_on_disk) done(static_cast<int>(u));
    }
    return;
  }
  disk_.Stream(
      [&](const DiskState::Part& part) {
        StateArrays arrays = From(part.unit, Arrays(part.unit), part.begin);
        arrays.extension = part.extension;
        arrays.moments = part.moments;
        arrays.moment_numel = part.end - part.begin;
        UpdateRange(part.unit, part.begin, part.end, arrays, step, /*on_cuda=*/false, nullptr);
      },
      done);
}

void SliceOptimizer::Update(std::span<const int> units, const StepParameters& step) {
  std::vector<kernels::UpdatePart> together;
  for (const int index : units) {
    const plan::UnitPlan& plan = unit_plan(index);
    const bool is_own = plan.state == plan::StateShare::kSlice || plan_.world_size == 1;
    if (!is_own || !OnCuda(index)) {
      Update(index, step);
    } else if (!memory_.is_dry()) {
      AddParts(index, 0, plan.unit.slice_numel, Arrays(index), together);
    }
  }
  if (!together.empty()) Run(together, step, /*on_cuda=*/true, Stream());
}

StateArrays SliceOptimizer::From(int index, const StateArrays& arrays, std::int64_t first) const {
  const DType dtype = unit_plan(index).unit.dtype;
  const std::int64_t skipped = first - arrays.first;
  StateArrays part = arrays;
  part.first = first;
  part.weights += skipped * ElementBytes(dtype);
  if (part.extension != nullptr) part.extension += skipped * MasterExtensionBytes(dtype);
  if (part.moments != nullptr) part.moments += skipped;
  if (part.gradients.data != nullptr) {
    part.gradients.data += skipped * ElementBytes(part.gradients.dtype);
  }
  return part;
}

void SliceOptimizer::UpdateRange(int index, std::int64_t begin, std::int64_t end,
                                 const StateArrays& arrays, const StepParameters& step,
                                 bool on_cuda, void* stream) {
  std::vector<kernels::UpdatePart> parts;
  AddParts(index, begin, end, arrays, parts);
  Run(parts, step, on_cuda, stream);
}

void SliceOptimizer::AddParts(int index, std::int64_t begin, std::int64_t end,
                              const StateArrays& arrays,
                              std::vector<kernels::UpdatePart>& parts) const {
  for (const Segment& segment : units_[static_cast<std::size_t>(index)].segments) {
    const std::int64_t first = std::max(segment.begin, begin);
    const std::int64_t last = std::min(segment.end, end);
    if (first >= last) continue;
    const StateArrays part = From(index, arrays, first);
    const bool has_second = part.moments != nullptr && plan_.moments > 1;
    parts.push_back({segment.group,
                     {unit_plan(index).unit.dtype, part.weights, part.extension},
                     part.gradients.dtype,
                     part.gradients.data,
                     part.moments,
                     has_second ? part.moments + part.moment_numel : nullptr,
                     last - first});
  }
}

void SliceOptimizer::Run(std::span<const kernels::UpdatePart> parts, const StepParameters& step,
                         bool on_cuda, void* stream) const {
  if (settings_.type == OptimizerType::kAdam) {
    std::vector<kernels::AdamWStep> steps;
    for (const Group& group : groups_.groups) steps.push_back(AdamWStepOf(group, step));
    if (on_cuda) return kernels::device::AdamW(steps, parts, stream);
    OnHost(parts, [&](const kernels::UpdatePart& part) {
      kernels::AdamW(steps[static_cast<std::size_t>(part.step)], part.weights, part.gradient_dtype,
                     part.gradient, part.first_moment, part.second_moment, part.n);
    });
  } else {
    std::vector<kernels::SgdStep> steps;
    for (const Group& group : groups_.groups) steps.push_back(SgdStepOf(group, step));
    if (on_cuda) return kernels::device::Sgd(steps, parts, stream);
    OnHost(parts, [&](const kernels::UpdatePart& part) {
      kernels::Sgd(steps[static_cast<std::size_t>(part.step)], part.weights, part.gradient_dtype,
                   part.gradient, part.first_moment, part.n);
    });
  }
}

kernels::AdamWStep SliceOptimizer::AdamWStepOf(const Group& group,
                                               const StepParameters& step) const {
  kernels::AdamWStep adam;
  adam.lr = group.LrOf(step.lr);
  adam.beta1 = step.beta1;
  adam.beta2 = step.beta2;
  adam.eps = settings_.eps;
  adam.weight_decay = group.weight_decay;
  adam.decoupled = settings_.adam_w_mode;
  adam.bias_correction = settings_.bias_correction;
  adam.t = step.t;
  adam.gradient_factor = step.gradient_factor;
  return adam;
}

kernels::SgdStep SliceOptimizer::SgdStepOf(const Group& group, const StepParameters& step) const {
  kernels::SgdStep sgd;
  sgd.lr = group.LrOf(step.lr);
  sgd.momentum = step.beta1;
  sgd.dampening = settings_.dampening;
  sgd.weight_decay = group.weight_decay;
  sgd.nesterov = settings_.nesterov;
  sgd.t = step.t;
  sgd.gradient_factor = step.gradient_factor;
  return sgd;
}

void SliceOptimizer::AdoptWrite(int index, std::int64_t first, std::int64_t numel,
                                const void* before) {
  if (OnCuda(index)) {
    kernels::device::AdoptWrites(before, Range(index, first), numel, Stream());
  } else {
    const std::int64_t element_bytes = ElementBytes(unit_plan(index).unit.dtype);
    ForEachRange(index, first, numel, DiskAccess::kChange,
                 [&](const kernels::WeightRange& part, std::int64_t begin, std::int64_t count) {
                   kernels::AdoptWrites(
                       static_cast<const std::byte*>(before) + begin * element_bytes, part, count);
                 });
  }
}

}  // namespace ullage::optim
