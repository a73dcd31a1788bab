// Recompute: a block of a model that keeps its input instead of everything that backward needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace ullage::activations {

// A part of a model from one tensor to another. It may read whatever it captured (masks, tables,
// the module's own parameters) and is run twice, so it must do the same both times; captured
// tensors get no gradient through it unless they are listed as parameters.
using Block = std::function<at::Tensor(const at::Tensor& x)>;

// One piece of memory for the inputs that the recomputed blocks of one forward keep.
//
// Kept one by one, they would lie between what comes and goes inside of blocks, and an allocator
// cannot use every gap that they leave: half of what operators hold at their peak was lost to gaps
// on a GPU. The piece is allocated with the first input and lives as long as any of them is needed.
class KeptInputs {
 public:
  // For at most `count` inputs of one shape and dtype.
  explicit KeptInputs(std::int64_t count) : count_(count) {}

  // A copy of `x` in the piece; `x` itself when the piece is full or was made for another shape or
  // dtype. Not to be called where gradients are recorded.
  at::Tensor Keep(const at::Tensor& x);

 private:
  std::int64_t count_, used_ = 0;
  std::int64_t stride_ = 0;  // elements from one input to the next
  at::Tensor piece_;         // [count * stride]
  std::vector<std::int64_t> shape_;
};

// block(x). Where gradients are wanted, nothing inside the block is kept but `x` and the state of
// the random generators; backward runs the block again from them (the generators are put back as
// they were found) and differentiates that run.
//
// `parameters` are the tensors other than `x` whose gradients the block yields, each listed once.
// They become inputs of one node of the graph, so that a walk from the loss sees that they will get
// a gradient, and each gets exactly one from the block, after the whole block is done. Frozen ones
// may be listed. The values and gradients are, bit for bit, those of block(x); only a parameter
// that is used several times inside of the block and also outside of it has its contributions
// added in another order.
//
// With `inputs` the block runs on a copy of `x` that lies there, and that is what is kept.
//
// The block runs again on the thread that runs backward. Nested recomputation and retain_graph
// work; second derivatives do not (UnsupportedError).
at::Tensor Recompute(const Block& block, const at::Tensor& x,
                     const std::vector<at::Tensor>& parameters, KeptInputs* inputs = nullptr);

}  // namespace ullage::activations
