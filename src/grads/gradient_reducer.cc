#include "grads/gradient_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/accumulate.h"
#include "torchx/dtype.h"
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::grads {
namespace {

constexpr std::uint32_t kLateItem = 0x4c000000;  // fingerprints of late exchanges

// Note [Late contributions]. A parameter normally gives one gradient in a backward pass: autograd
// adds up its uses first. Nested passes (reentrant checkpoints) break that in two ways: one
// parameter may give several, and the graph of the loss does not announce them, so that its unit
// may have been sent. First contributions of sent units, and second and later contributions of
// any, are kept aside as two rounds and exchanged at the end of the pass. The rounds depend on
// the parameter alone, never on the unit's size, so the bits stay the same for all placements.
enum Round { kFirst = 1, kFurther = 2 };

}  // namespace

GradientReducer::GradientReducer(const plan::Plan& plan, const plan::WindowPlan& window_plan,
                                 comm::Comm& comm, comm::TieredWindow& window,
                                 memory::Memory& memory)
    : plan_(plan),
      window_plan_(window_plan),
      comm_(comm),
      window_(window),
      memory_(memory),
      homes_(plan.parameters.size()),
      taps_(plan.parameters.size()),
      leaves_(plan.parameters.size()),
      sums_(plan, window_plan, comm.rank(), window, memory),
      order_(ExchangeOrder(plan)),
      contributions_(plan.parameters.size()),
      units_(plan.units.size()),
      late_seen_(static_cast<std::size_t>(plan.world_size)) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const layout::Member& member : plan.units[u].unit.members) {
      homes_[static_cast<std::size_t>(member.parameter)] = {static_cast<int>(u), member};
    }
  }
  if (plan.world_size == 1) return;
  if (comm.AllLocal() || memory.is_dry()) {
    exchange_ = MakeWindowExchange(plan, window_plan, comm, window, memory, sums_);
  } else {
    exchange_ =
        MakeCollectiveExchange(plan, comm, memory, [this](int index) { return FloatSums(index); });
  }
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::Attach(int parameter, const at::Tensor& tensor) {
  auto tap = std::make_unique<torchx::GradientTap>(
      tensor, [this, parameter](const at::Tensor& gradient) { OnGradient(parameter, gradient); });
  parameter_of_node_[tap->node()] = parameter;
  taps_[static_cast<std::size_t>(parameter)] = std::move(tap);
  leaves_[static_cast<std::size_t>(parameter)] = tensor;
}

void GradientReducer::RenewTaps() {
  for (std::size_t p = 0; p < taps_.size(); ++p) {
    if (taps_[p] == nullptr || taps_[p]->IsCurrent()) continue;
    former_taps_.push_back(std::move(taps_[p]));
    Attach(static_cast<int>(p), leaves_[p]);
  }
}

void GradientReducer::RenewAllTaps() {
  former_taps_.clear();
  parameter_of_node_.clear();
  for (std::size_t p = 0; p < taps_.size(); ++p) {
    if (std::exchange(taps_[p], nullptr) != nullptr) Attach(static_cast<int>(p), leaves_[p]);
  }
}

void GradientReducer::Backward(const at::Tensor& loss, double seed, bool retain_graph) {
  BeginPass(loss);
  if (loss.defined() && loss.requires_grad()) torchx::RunBackward(loss, seed, retain_graph);
  EndPass();
}

void GradientReducer::BeginPass(const at::Tensor& loss) {
  in_pass_ = true;
  ++backward_;
  sums_.BeginPass(expected_passes_);
  for (UnitState& state : units_) state = {};
  for (Contribution& contribution : contributions_) contribution = {};
  next_ = 0;
  RenewTaps();
  if (exchange_ == nullptr) return;
  if (loss.defined() && loss.requires_grad()) {
    torchx::VisitGraph(loss, [this](const torch::autograd::Node* node) {
      const auto found = parameter_of_node_.find(node);
      if (found == parameter_of_node_.end()) return;
      contributions_[static_cast<std::size_t>(found->second)].expected = true;
      ++units_[static_cast<std::size_t>(homes_[static_cast<std::size_t>(found->second)].unit)]
            .missing;
    });
  }
  exchange_->Begin(backward_);
  if (loss.defined()) CloseReadyUnits(/*all=*/false);
}

void GradientReducer::EndOutsidePass() {
  if (!std::exchange(awaits_end_, false)) return;
  EndPass();
  if (outside_.end) outside_.end();
}

void GradientReducer::EndPass() {
  in_pass_ = false;
  if (exchange_ == nullptr) return sums_.Flush();
  CloseReadyUnits(/*all=*/true);
  exchange_->Finish();
  ExchangeLate();
  window_.SignalAfter(Operators(), window_plan_.sums_complete(), backward_);
}

void GradientReducer::OnGradient(int parameter, const at::Tensor& gradient) {
  if (!in_pass_) {
    if (outside_.begin) outside_.begin();
    BeginPass({});
    torchx::AtEndOfBackward([this](bool outermost) {
      awaits_end_ = true;
      if (outermost) EndOutsidePass();
    });
  }
  const Home& home = homes_[static_cast<std::size_t>(parameter)];
  Contribution& contribution = contributions_[static_cast<std::size_t>(parameter)];
  const layout::ParameterSpec& spec = plan_.parameters[static_cast<std::size_t>(parameter)];
  if (gradient.is_sparse()) {
    throw UnsupportedError(fmt::format("parameter '{}' has a sparse gradient", spec.name),
                           "make the embedding with sparse=false");
  }
  if (exchange_ == nullptr) return sums_.Add(parameter, home.unit, home.member, gradient);
  UnitState& state = units_[static_cast<std::size_t>(home.unit)];
  if (std::exchange(contribution.arrived, true)) {
    return AddLate(home.unit, kFurther, home.member, gradient);
  }
  if (state.closed) return AddLate(home.unit, kFirst, home.member, gradient);
  if (!std::exchange(state.has_gradients, true)) state.gradients = exchange_->Reserve(home.unit);
  if (state.gradients != nullptr) {
    std::byte* target = state.gradients + home.member.offset * ElementBytes(spec.dtype);
    torchx::View(target, gradient.sizes(), torchx::ToTorch(spec.dtype), memory_.device())
        .copy_(gradient);
  }
  if (contribution.expected && --state.missing == 0) CloseReadyUnits(/*all=*/false);
}

void GradientReducer::CloseReadyUnits(bool all) {
  for (; next_ < order_.size(); ++next_) {
    UnitState& state = units_[static_cast<std::size_t>(order_[next_])];
    if (!all && state.missing > 0) break;
    exchange_->Send(order_[next_], state.has_gradients);
    state.closed = true;
  }
  exchange_->Progress();
}

// Late contributions are few: they wait in the host's memory and are exchanged there, whatever
// memory the sums are in.
memory::Buffer GradientReducer::LateBuffer(int index) {
  return memory_.Allocate(memory::Tag::kBuckets,
                          {plan::StagingBytes(unit(index), plan_.world_size), 0},
                          memory_.is_cuda() ? plan::Tier::kHost : plan::Tier::kDevice);
}

void GradientReducer::AddLate(int index, int round, const layout::Member& member,
                              const at::Tensor& gradient) {
  memory::Buffer& buffer = late_[{index, round}];
  if (buffer.empty()) buffer = LateBuffer(index);
  if (buffer.data() == nullptr) return;
  const DType dtype = unit(index).dtype;
  std::byte* target = buffer.data() + member.offset * ElementBytes(dtype);
  const at::Tensor dense = gradient.contiguous().cpu();
  if (dtype == DType::kFloat32) {
    kernels::AddToFloat(dtype, dense.const_data_ptr(), reinterpret_cast<float*>(target),
                        member.numel);
  } else {
    kernels::AddTo16(dtype, target, dense.const_data_ptr(), member.numel);
  }
}

void GradientReducer::ExchangeLate() {
  if (memory_.is_dry()) {
    late_.clear();
    return;
  }
  late_total_ += static_cast<std::int64_t>(late_.size());
  window_.Signal(window_plan_.late_total(), static_cast<std::uint64_t>(late_total_));
  window_.Signal(window_plan_.backward_done(), backward_);
  bool any = false;
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    window_.Wait(rank, window_plan_.backward_done(), backward_, "the end of the backward pass");
    const std::uint64_t total = window_.Peek(rank, window_plan_.late_total());
    any |= std::exchange(late_seen_[static_cast<std::size_t>(rank)], total) != total;
  }
  if (!any) return;

  std::vector<std::int64_t> present(2 * plan_.units.size(), 0);
  const auto slot = [](int index, int round) {
    return static_cast<std::size_t>(2 * index + round - 1);
  };
  for (const auto& [key, buffer] : late_) present[slot(key.first, key.second)] = 1;
  comm_.AllReduceMax(present, kLateItem);
  const plan::Tier tier = memory_.is_cuda() ? plan::Tier::kHost : plan::Tier::kDevice;
  memory::Buffer scratch =
      memory_.Allocate(memory::Tag::kBuckets, {BucketScratchBytes(plan_), 0}, tier);
  for (const int round : {kFirst, kFurther}) {
    for (const int index : order_) {
      if (present[slot(index, round)] == 0) continue;
      memory::Buffer& mine = late_[{index, round}];
      if (mine.empty()) mine = LateBuffer(index);
      const std::int64_t sum_bytes = 4 * unit(index).slice_numel;
      memory::Buffer on_host;  // sums that are not there already
      float* sums = FloatSums(index);
      if (memory_.OnCuda(plan_.units[static_cast<std::size_t>(index)].home)) {
        on_host = memory_.Allocate(memory::Tag::kBuckets, {sum_bytes, 0}, plan::Tier::kHost);
        Operators().Copy(on_host.data(), sums, sum_bytes);
        Operators().Finish();
        sums = on_host.as<float>();
      } else {
        sums_.Complete();
      }
      ExchangeByBuckets(plan_, comm_, index, mine.data(), sums, scratch,
                        kLateItem | static_cast<std::uint32_t>(index));
      if (!on_host.empty()) {
        Operators().Copy(FloatSums(index), sums, sum_bytes);
        Operators().Finish();
      }
      late_.erase({index, round});
    }
  }
}

void GradientReducer::ReadSums(int rank, int index, std::int64_t first, std::int64_t count,
                               float* sums) {
  window_.Read(rank, window_plan_.sums_complete(), backward_,
               window_plan_.sums[static_cast<std::size_t>(index)] + 4 * first,
               reinterpret_cast<std::byte*>(sums), 4 * count, Operators(), "gradient sums");
}

void GradientReducer::SumsRead() {
  window_.SignalAfter(Operators(), window_plan_.sums_read(), ++updates_);
  for (int rank = 0; rank < plan_.world_size; ++rank) {
    window_.Wait(rank, window_plan_.sums_read(), updates_, "the optimizer step");
  }
}

int GradientReducer::ParameterAt(int index, std::int64_t slice_offset) const {
  for (const layout::Piece& piece : layout::PiecesOfSlice(unit(index), comm_.rank())) {
    if (slice_offset >= piece.slice_offset && slice_offset < piece.slice_offset + piece.numel) {
      return piece.parameter;
    }
  }
  throw StateError(
      fmt::format("element {} of unit {} belongs to no parameter", slice_offset, index));
}

}  // namespace ullage::grads
