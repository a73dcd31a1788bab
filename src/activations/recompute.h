// Recompute: a block of a model that keeps its input instead of everything that backward needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace ullage::activations {

// A part of a model from one tensor to another. It may read whatever it captured (masks, tables,
// the module's own parameters) and is run twice, so it must do the same both times; captured
// tensors get no gradient through it unless they are listed as parameters.
using Block = std::function<at::Tensor(const at::Tensor& x)>;

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
// The block runs again on the thread that runs backward. Nested recomputation and retain_graph
// work; second derivatives do not (UnsupportedError).
at::Tensor Recompute(const Block& block, const at::Tensor& x,
                     const std::vector<at::Tensor>& parameters);

}  // namespace ullage::activations
