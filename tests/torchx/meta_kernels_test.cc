// Meta results have the sizes, strides and dtypes that the CPU gives.
#include "torchx/meta_kernels.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <functional>
#include <vector>

namespace ullage::torchx {
namespace {

using at::Tensor;
using Results = std::vector<Tensor>;

struct Device {
  at::Device device;

  Tensor Real(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const {
    return at::ones(sizes, at::TensorOptions(device).dtype(dtype)).set_requires_grad(true);
  }
  Tensor Plain(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const {
    return at::ones(sizes, at::TensorOptions(device).dtype(dtype));
  }
  Tensor Index(at::IntArrayRef sizes) const {
    return at::zeros(sizes, at::TensorOptions(device).dtype(at::kLong));
  }
};

// Appends the gradients of `output` to what `output` is.
Results WithGradients(const Tensor& output, const Results& inputs) {
  Results results = {output};
  for (const Tensor& gradient :
       torch::autograd::grad({output.to(at::kFloat).sum()}, inputs, {}, {}, false, true)) {
    results.push_back(gradient);
  }
  return results;
}

void ExpectMetaLikeCpu(const std::function<Results(const Device&)>& body) {
  InstallMetaKernels();
  const Results cpu = body({at::kCPU}), meta = body({at::kMeta});
  ASSERT_EQ(cpu.size(), meta.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    SCOPED_TRACE("result " + std::to_string(i));
    ASSERT_EQ(cpu[i].defined(), meta[i].defined());
    if (!cpu[i].defined()) continue;
    EXPECT_TRUE(meta[i].is_meta());
    EXPECT_EQ(cpu[i].sizes(), meta[i].sizes());
    EXPECT_EQ(cpu[i].strides(), meta[i].strides());
    EXPECT_EQ(cpu[i].scalar_type(), meta[i].scalar_type());
  }
}

TEST(MetaKernels, LayerNormKeepsStatisticsLikeTheCpu) {
  const std::pair<at::ScalarType, at::ScalarType> dtypes[] = {{at::kFloat, at::kFloat},
                                                              {at::kBFloat16, at::kBFloat16},
                                                              {at::kHalf, at::kHalf},
                                                              {at::kBFloat16, at::kFloat}};
  for (const auto& [input, parameter] : dtypes) {
    ExpectMetaLikeCpu([&](const Device& on) -> Results {
      const auto [y, mean, rstd] =
          at::native_layer_norm(on.Plain({3, 4, 8}, input), {8}, on.Plain({8}, parameter),
                                on.Plain({8}, parameter), 1e-5);
      return {y, mean, rstd};
    });
    ExpectMetaLikeCpu([&](const Device& on) {
      const Tensor x = on.Real({3, 4, 8}, input), w = on.Real({8}, parameter),
                   b = on.Real({8}, parameter);
      return WithGradients(at::layer_norm(x, {8}, w, b), {x, w, b});
    });
  }
}

TEST(MetaKernels, EmbeddingGradientIsDense) {
  ExpectMetaLikeCpu([](const Device& on) {
    const Tensor table = on.Real({11, 6});
    return WithGradients(at::embedding(table, on.Index({2, 5}), 0), {table});
  });
}

TEST(MetaKernels, WhereBroadcastsAndPromotes) {
  ExpectMetaLikeCpu([](const Device& on) -> Results {
    const Tensor condition = on.Plain({4, 1}, at::kBool);
    return {at::where(condition, on.Plain({3}, at::kHalf), on.Plain({2, 1, 1})),
            at::where(condition, on.Plain({3}), -1e9), at::where(condition, 1, on.Plain({3}))};
  });
}

TEST(MetaKernels, IndexSelectTakesRowsOrColumns) {
  ExpectMetaLikeCpu([](const Device& on) {
    const Tensor x = on.Real({5, 7});
    Results results = WithGradients(at::index_select(x, 0, on.Index({3})), {x});
    results.push_back(at::index_select(x, -1, on.Index({2})));
    return results;
  });
}

TEST(MetaKernels, DropoutKeepsABooleanMask) {
  ExpectMetaLikeCpu([](const Device& on) -> Results {
    const Tensor x = on.Real({4, 6});
    const auto [y, mask] = at::native_dropout(x, 0.5, true);
    Results results = WithGradients(y, {x});
    results.push_back(mask);
    return results;
  });
}

TEST(MetaKernels, PointwiseOperatorsKeepTheLayout) {
  ExpectMetaLikeCpu([](const Device& on) {
    const Tensor x = on.Real({4, 6});
    Results results = WithGradients(at::relu(x.t()), {x});
    results.push_back(at::flip(x.detach().t(), {0}));
    results.push_back(at::abs(x.detach().t()));
    results.push_back(at::logical_not(x.detach().t()));
    results.push_back(at::where(x.detach().t() > 0, x.detach().t(), 0.5));
    const Tensor target = on.Plain({4, 6});
    for (const Tensor& result : WithGradients(at::mse_loss(x, target), {x})) {
      results.push_back(result);
    }
    return results;
  });
}

TEST(MetaKernels, FusedAdamWRunsInPlace) {
  InstallMetaKernels();
  const Device on{at::kMeta};
  const Results weights = {on.Plain({4})}, gradients = {on.Plain({4})}, m = {on.Plain({4})},
                v = {on.Plain({4})}, steps = {on.Plain({})};
  at::_fused_adamw_(weights, gradients, m, v, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8, false,
                    false);
  EXPECT_EQ(weights[0].sizes(), at::IntArrayRef({4}));
}

// What backward keeps tells the paths apart: the attention weights or one number for each query.
std::string AttentionNode(const Device& on, at::ScalarType dtype, bool mask, double dropout) {
  const auto make = [&] { return on.Real({2, 3, 5, 8}, dtype); };
  std::optional<Tensor> bias;
  if (mask) bias = on.Plain({2, 1, 1, 5}, dtype);
  const Tensor y = at::scaled_dot_product_attention(make(), make(), make(), bias, dropout);
  return y.grad_fn()->name();
}

TEST(MetaKernels, AttentionTakesThePathOfTheCpu) {
  InstallMetaKernels();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool mask : {false, true}) {
      for (const double dropout : {0.0, 0.1}) {
        EXPECT_EQ(AttentionNode({at::kCPU}, dtype, mask, dropout),
                  AttentionNode({at::kMeta}, dtype, mask, dropout));
      }
    }
  }
  EXPECT_NE(AttentionNode({at::kMeta}, at::kFloat, true, 0.0),
            AttentionNode({at::kMeta}, at::kFloat, true, 0.1));
}

// Query [batch, heads, tokens, size], key and value as a linear layer leaves them.
Results Attention(const Device& on, at::ScalarType dtype, double dropout, bool causal) {
  const Tensor q = on.Real({2, 3, 5, 8}, dtype), k = on.Real({2, 7, 3, 8}, dtype),
               v = on.Real({2, 7, 3, 8}, dtype);
  std::optional<Tensor> mask;
  if (!causal) mask = on.Plain({2, 1, 1, 7}, at::kBool);
  const Tensor output = at::scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2),
                                                         mask, dropout, causal);
  return WithGradients(output, {q, k, v});
}

TEST(MetaKernels, AttentionHasTheLayoutOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const double dropout : {0.0, 0.1}) {
      for (const bool causal : {false, true}) {
        ExpectMetaLikeCpu([&](const Device& on) { return Attention(on, dtype, dropout, causal); });
      }
    }
  }
}

TEST(MetaKernels, FlashAttentionKeepsTheLogarithmOfTheSum) {
  ExpectMetaLikeCpu([](const Device& on) -> Results {
    const Tensor q = on.Plain({2, 3, 5, 8}, at::kBFloat16);
    const auto [output, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q);
    return {output, log_sum};
  });
}

// A decoder layer in the style of Llama, with a loss over the vocabulary.
Results DecoderStep(const Device& on, at::ScalarType dtype) {
  const int64_t batch = 2, tokens = 6, heads = 2, size = 4, width = heads * size, vocabulary = 13;
  const Tensor table = on.Real({vocabulary, width}, dtype), norm = on.Real({width}, dtype),
               project = on.Real({width, width}, dtype), gate = on.Real({16, width}, dtype),
               down = on.Real({width, 16}, dtype);
  const Tensor ids = on.Index({batch, tokens});
  Tensor x = at::embedding(table, ids);
  const Tensor angle =
      at::outer(at::arange(tokens, x.options().dtype(at::kFloat)), on.Plain({size / 2}));
  const Tensor cos = at::cat({angle, angle}, -1).cos().to(dtype);
  const Tensor sin = at::cat({angle, angle}, -1).sin().to(dtype);
  const auto rotate = [&](const Tensor& t) {
    const auto halves = t.chunk(2, -1);
    return t * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
  };
  const auto split = [&](const Tensor& t) {
    return t.view({batch, tokens, heads, size}).transpose(1, 2);
  };
  const Tensor normed = at::rms_norm(x, {width}, norm, 1e-5);
  const Tensor q = rotate(split(at::linear(normed, project)));
  const Tensor attended = at::scaled_dot_product_attention(q, q, split(normed), {}, 0.0, true);
  x = x + at::linear(attended.transpose(1, 2).reshape({batch, tokens, width}), project);
  x = x + at::linear(at::silu(at::linear(x, gate)) * at::linear(x, gate), down);
  const Tensor variance = x.to(at::kFloat).pow(2).mean(-1, true);
  x = norm * (x.to(at::kFloat) * at::rsqrt(variance + 1e-5)).to(dtype);
  const Tensor logits = at::linear(x, table).to(at::kFloat).view({-1, vocabulary});
  const Tensor loss = at::cross_entropy_loss(logits, ids.view({-1}), {}, at::Reduction::Sum);
  Results results = WithGradients(loss, {table, norm, project, gate, down});
  results.push_back(logits);
  return results;
}

TEST(MetaKernels, ADecoderTrainsOnMeta) {
  ExpectMetaLikeCpu([](const Device& on) { return DecoderStep(on, at::kFloat); });
  ExpectMetaLikeCpu([](const Device& on) { return DecoderStep(on, at::kBFloat16); });
}

}  // namespace
}  // namespace ullage::torchx
