// From autograd to the owner's sums.
//
// Gradients are taken as autograd produces them, laid out by unit, exchanged between ranks at
// every backward pass and added to the fp32 sum of the slice that this rank owns: the sum of a
// pass is ((sum + r0) + r1) + ..., in rank order, whatever the stage and the sizes of units and
// buckets. What a rank did not produce counts as zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/tiered_window.h"
#include "grads/slice_exchange.h"
#include "grads/sums.h"
#include "memory/buffer.h"
#include "plan/window_plan.h"
#include "torchx/autograd.h"

namespace ullage::grads {

class GradientReducer {
 public:
  // All references must outlive the reducer. The window's regions for sums and gradients are the
  // reducer's to use.
  GradientReducer(const plan::Plan& plan, const plan::WindowPlan& window_plan, comm::Comm& comm,
                  comm::TieredWindow& window, memory::Memory& memory);
  ~GradientReducer();

  // Takes the gradients of a trainable parameter from now on. After its tensor is bound.
  void Attach(int parameter, const at::Tensor& tensor);

  // Runs the backward pass of `loss` with d(loss) = `seed` and reduces what it yields. Every rank
  // calls it the same number of times. An undefined loss, or one without a graph, contributes
  // zeros. Returns when the sums of the owned slices are complete.
  void Backward(const at::Tensor& loss, double seed, bool retain_graph);

  // A pass that somebody else runs (`loss.backward()`) is found by its first gradient: `begin` is
  // called then, and may throw; `end` when it is over and its sums are complete. Units are
  // exchanged at the end of such a pass. One whose first gradient came from a pass nested in it (a
  // reentrant checkpoint) cannot be seen to end: EndOutsidePass ends it, before whatever comes
  // next.
  struct OutsidePass {
    std::function<void()> begin;
    std::function<void()> end;
  };
  void OnOutsidePass(OutsidePass listener) { outside_ = std::move(listener); }
  void EndOutsidePass();
  // Whether a pass was begun and has not ended: inside one, or after one that an error ended.
  bool IsInPass() const { return in_pass_; }
  // Gives up a pass that an error ended.
  void AbandonPass() {
    in_pass_ = awaits_end_ = false;
    sums_.DropHeld();
  }
  // From now on gradients arrive in the queue that is current now. Between passes.
  void RenewAllTaps();
  // Passes that a step has, unless more are made.
  void ExpectPasses(std::int64_t passes) { expected_passes_ = passes; }
  // A pass that is recorded and repeated on one rank goes on without this; so what it brings is
  // taken from here when it was recorded, and noted when it was repeated.
  Sums& sums() { return sums_; }

  // The sums of this rank's slice of `unit`. Complete after Complete().
  UnitSums Of(int unit) const { return sums_.Of(unit); }
  // All gradients have reached their sums. Once, before the sums are read.
  void Complete() { sums_.Complete(); }
  void Listen(Sums::Listener listener) { sums_.Listen(std::move(listener)); }
  // Copies [first, first + count) of the sums of the slice of `rank`, after all ranks have
  // finished their backward passes. Only for units whose state is whole.
  void ReadSums(int rank, int unit, std::int64_t first, std::int64_t count, float* sums);
  // Ends the reading of peers' sums: returns when every rank has come here.
  void SumsRead();
  // A step was skipped: its sums are of no use.
  void Forget() {
    sums_.Clear();
    for (const int unit : order_) sums_.ClearUnit(unit);
  }
  // The step has used them: Sums::Clear, Sums::ClearUnit.
  void Clear() { sums_.Clear(); }
  void ClearUnit(int unit) { sums_.ClearUnit(unit); }

  void NoteWritten(int unit, int parameter) { sums_.NoteWritten(unit, parameter); }

  // The parameter that an element of this rank's slice belongs to.
  int ParameterAt(int unit, std::int64_t slice_offset) const;

 private:
  struct Contribution {  // of one parameter to the backward pass that runs
    bool expected = false;
    bool arrived = false;
  };
  struct UnitState {
    int missing = 0;  // parameters that the graph will still deliver
    bool closed = false;
    std::byte* gradients = nullptr;
    bool has_gradients = false;
  };

  float* FloatSums(int unit) const { return reinterpret_cast<float*>(sums_.Of(unit).data); }
  void BeginPass(const at::Tensor& loss);
  void EndPass();
  void RenewTaps();
  void OnGradient(int parameter, const at::Tensor& gradient);
  torchx::Queue Operators() const { return torchx::Queue::OfOperators(memory_.device()); }
  memory::Buffer LateBuffer(int unit);
  void AddLate(int unit, int round, const layout::Member& member, const at::Tensor& gradient);
  void CloseReadyUnits(bool all);
  void ExchangeLate();
  const layout::Unit& unit(int index) const {
    return plan_.units[static_cast<std::size_t>(index)].unit;
  }

  const plan::Plan& plan_;
  const plan::WindowPlan& window_plan_;
  comm::Comm& comm_;
  comm::TieredWindow& window_;
  memory::Memory& memory_;

  struct Home {
    int unit = -1;
    layout::Member member;
  };
  std::vector<Home> homes_;  // by parameter
  std::vector<std::unique_ptr<torchx::GradientTap>> taps_;
  std::vector<at::Tensor> leaves_;  // by parameter; undefined where there is no tap
  // Of nodes that leaves had before they were rebound; graphs made then still end there.
  std::vector<std::unique_ptr<torchx::GradientTap>> former_taps_;
  std::unordered_map<const torch::autograd::Node*, int> parameter_of_node_;

  Sums sums_;
  std::unique_ptr<SliceExchange> exchange_;  // null on one rank

  std::vector<int> order_;  // trainable units, in the order in which they are exchanged
  std::size_t next_ = 0;    // first of them that is not exchanged yet
  std::vector<Contribution> contributions_;
  std::vector<UnitState> units_;
  // Note [Late contributions]. Keyed by unit and round.
  std::map<std::pair<int, int>, memory::Buffer> late_;
  std::int64_t late_total_ = 0;           // of this rank, since the start
  std::vector<std::uint64_t> late_seen_;  // the same of each rank, at the last pass
  std::uint64_t backward_ = 0;
  std::int64_t expected_passes_ = 1;
  std::uint64_t updates_ = 0;
  OutsidePass outside_;
  bool in_pass_ = false;
  bool awaits_end_ = false;  // an outside pass, all of whose gradients may have come
};

}  // namespace ullage::grads
