#include "optim/slice_optimizer.h"

#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/sgd.h"
#include "kernels/write_back.h"
#include "optim/parallel_ranges.h"

namespace ullage::optim {
namespace {

constexpr std::int64_t kGrain = 1 << 16;  // elements for one thread

}  // namespace

SliceOptimizer::SliceOptimizer(const plan::Plan& plan, const OptimizerSettings& settings,
                               const Groups& groups, params::ParameterStore& weights,
                               grads::GradientReducer& gradients, comm::Comm& comm,
                               memory::Ledger& ledger, memory::Place place)
    : plan_(plan),
      settings_(settings),
      groups_(groups),
      weights_(weights),
      gradients_(gradients),
      comm_(comm),
      place_(place),
      units_(plan.units.size()),
      tile_(ledger, place, memory::Tag::kBuckets, {plan.sums_tile_bytes, 0}) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    UnitState& state = units_[u];
    if (unit.state == plan::StateShare::kNone) continue;
    state.numel = unit.state == plan::StateShare::kWhole ? unit.unit.padded_numel(plan.world_size)
                                                         : unit.unit.slice_numel;
    state.master = memory::Buffer(ledger, place, memory::Tag::kMaster,
                                  plan::MasterBytes(unit, comm.rank(), plan.world_size));
    state.moments =
        memory::Buffer(ledger, place, memory::Tag::kMoments,
                       plan::MomentBytes(unit, comm.rank(), plan.world_size, plan.moments));
    state.segments = MakeSegments(static_cast<int>(u));
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

std::byte* SliceOptimizer::Weights(int index) const {
  return unit_plan(index).state == plan::StateShare::kWhole ? weights_.WholeWeights(index)
                                                            : weights_.OwnWeights(index);
}

float* SliceOptimizer::Master(int index) const {
  const plan::UnitPlan& plan = unit_plan(index);
  if (plan.state == plan::StateShare::kNone) return nullptr;
  if (plan.has_master) return units_[static_cast<std::size_t>(index)].master.as<float>();
  return reinterpret_cast<float*>(Weights(index));
}

void SliceOptimizer::Update(int index, const StepParameters& step) {
  const plan::UnitPlan& plan = unit_plan(index);
  if (plan.state == plan::StateShare::kSlice) {
    if (place_ == memory::Place::kNowhere) return;
    return UpdateRange(index, 0, plan.unit.slice_numel, gradients_.Sums(index), step);
  }
  const std::int64_t tile_numel = tile_.size() / 4;
  for (int owner = 0; owner < plan_.world_size; ++owner) {
    const std::int64_t begin = owner * plan.unit.slice_numel;
    if (owner == comm_.rank()) {
      if (place_ == memory::Place::kNowhere) continue;
      UpdateRange(index, begin, begin + plan.unit.slice_numel, gradients_.Sums(index), step);
      continue;
    }
    for (std::int64_t first = 0; first < plan.unit.slice_numel; first += tile_numel) {
      const std::int64_t count = std::min(tile_numel, plan.unit.slice_numel - first);
      gradients_.ReadSums(owner, index, first, count, tile_.as<float>());
      if (place_ == memory::Place::kNowhere) continue;
      UpdateRange(index, begin + first, begin + first + count, tile_.as<float>(), step);
    }
  }
}

void SliceOptimizer::UpdateRange(int index, std::int64_t begin, std::int64_t end,
                                 const float* gradients, const StepParameters& step) {
  const plan::UnitPlan& plan = unit_plan(index);
  UnitState& state = units_[static_cast<std::size_t>(index)];
  float* const master = Master(index);
  std::byte* const weights = plan.has_master ? Weights(index) : nullptr;
  float* const first_moment = state.moments.as<float>();
  const DType dtype = plan.unit.dtype;
  for (const Segment& segment : state.segments) {
    const std::int64_t segment_begin = std::max(segment.begin, begin);
    const std::int64_t segment_end = std::min(segment.end, end);
    if (segment_begin >= segment_end) continue;
    const Group& group = groups_.groups[static_cast<std::size_t>(segment.group)];
    ForRanges(segment_begin, segment_end, kGrain, [&](std::int64_t first, std::int64_t last) {
      const std::int64_t n = last - first;
      std::byte* weight = weights == nullptr ? nullptr : weights + first * ElementBytes(dtype);
      const float* gradient = gradients + (first - begin);
      if (settings_.type == OptimizerType::kAdam) {
        kernels::AdamWStep adam;
        adam.lr = step.lr * group.lr_factor;
        adam.beta1 = step.beta1;
        adam.beta2 = step.beta2;
        adam.eps = settings_.eps;
        adam.weight_decay = group.weight_decay;
        adam.decoupled = settings_.adam_w_mode;
        adam.bias_correction = settings_.bias_correction;
        adam.t = step.t;
        adam.gradient_factor = step.gradient_factor;
        kernels::AdamW(adam, master + first, DType::kFloat32, gradient, first_moment + first,
                       first_moment + state.numel + first, dtype, weight, n);
      } else {
        kernels::SgdStep sgd;
        sgd.lr = step.lr * group.lr_factor;
        sgd.momentum = step.beta1;
        sgd.dampening = settings_.dampening;
        sgd.weight_decay = group.weight_decay;
        sgd.nesterov = settings_.nesterov;
        sgd.t = step.t;
        sgd.gradient_factor = step.gradient_factor;
        float* buffer = state.moments.empty() ? nullptr : first_moment + first;
        kernels::Sgd(sgd, master + first, DType::kFloat32, gradient, buffer, dtype, weight, n);
      }
    });
  }
}

void SliceOptimizer::AdoptWrite(int index, int parameter) {
  const plan::UnitPlan& plan = unit_plan(index);
  if (!plan.has_master || place_ == memory::Place::kNowhere) return;
  const auto adopt = [&](std::int64_t offset, std::int64_t numel) {
    kernels::AdoptWrites(plan.unit.dtype, Weights(index) + offset * ElementBytes(plan.unit.dtype),
                         Master(index) + offset, numel);
  };
  if (plan.state == plan::StateShare::kWhole) {
    for (const layout::Member& member : plan.unit.members) {
      if (member.parameter == parameter) adopt(member.offset, member.numel);
    }
    return;
  }
  for (const layout::Piece& piece : layout::PiecesOfSlice(plan.unit, comm_.rank())) {
    if (piece.parameter == parameter) adopt(piece.slice_offset, piece.numel);
  }
}

}  // namespace ullage::optim
