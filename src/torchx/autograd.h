// The places where the engine touches autograd: gradients as they arrive, the graph of a loss,
// and the backward pass itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace ullage::torchx {

// Receives the gradients of one leaf. It hooks the leaf's AccumulateGrad *node*: the tensor's own
// post-accumulate slot belongs to the user. Each accumulation hands the gradient over and leaves
// the leaf's .grad empty, so no full gradient survives in it.
//
// The callback runs on the thread that runs the backward pass, under no-grad.
class GradientTap {
 public:
  using Callback = std::function<void(at::Tensor gradient)>;

  GradientTap(const at::Tensor& leaf, Callback callback);
  ~GradientTap();
  GradientTap(const GradientTap&) = delete;
  GradientTap& operator=(const GradientTap&) = delete;

  // False after the leaf was given data of another dtype or device (`p.data = x`): graphs made
  // since then end in another node, and the leaf needs a new tap.
  bool IsCurrent() const;

  // Identifies the leaf in a graph.
  const torch::autograd::Node* node() const { return node_.get(); }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> leaf_;
  std::shared_ptr<torch::autograd::Node> node_;
  std::uintptr_t key_ = 0;
};

// Calls `visit` once for each node of the graph below `loss`, in no particular order. Nested
// backward passes (reentrant checkpoints) are not seen. Nothing when the loss has no graph.
void VisitGraph(const at::Tensor& loss,
                const std::function<void(const torch::autograd::Node*)>& visit);

// Runs the backward pass of a scalar `loss` with d(loss) = `seed`.
void RunBackward(const at::Tensor& loss, double seed, bool retain_graph);

// Calls `end` when the backward pass that the calling thread is in is over, and says whether it is
// the outermost: one that a reentrant checkpoint runs is nested in another. What it throws, the
// caller of the pass gets.
void AtEndOfBackward(std::function<void(bool outermost)> end);

}  // namespace ullage::torchx
