// Parts of a layer as one node of the graph each, with few launches.
//
// Note [Fused layers]
// A small model on a GPU is bound by the host, which needs longer to launch an operator and to keep
// its graph than the device needs to run it. So what follows a matrix product in a BERT layer is
// one kernel of ours (kernels/device_layers.h), the gradients of biases and norms are sums that
// the same kernels begin, and gradients that meet are added up by the products themselves. The
// numbers are those of the operators one by one, but sums are added up in another order, which
// depends on the shape alone. On the CPU the same functions run plain loops, which are there for
// tests: models use them on CUDA only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ullage::models {

struct Linear;     // layers.h
struct LayerNorm;  // layers.h

// Whether a model should use the functions below for activations like `x` [tokens, width] and an
// inner width of `inner`.
bool ShouldFuse(const at::Tensor& x, std::int64_t inner);

// norm(dropout(map(x)) + residual). `x` [tokens, inputs], the rest [tokens, width].
at::Tensor DenseAddNorm(const at::Tensor& x, const Linear& map, const at::Tensor& residual,
                        const LayerNorm& norm, double dropout);

// norm(dropout(down(gelu(up(x)))) + x). `x` [tokens, width].
at::Tensor FeedForward(const at::Tensor& x, const Linear& up, const Linear& down,
                       const LayerNorm& norm, double dropout);

// Gradients of biases that were added to each of several maps' results: the sums over the rows of
// `gradients`, all [tokens, width] of one shape and type, contiguous. Up to 4.
std::vector<at::Tensor> BiasGradients(const std::vector<at::Tensor>& gradients);
// Whether BiasGradients takes them, and they are on CUDA.
bool ShouldFuseBiasGradients(const std::vector<at::Tensor>& gradients);

}  // namespace ullage::models
