// The parts of a decoder layer: rotary embedding, gate, joint projections, causal attention.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "models/causal_attention.h"
#include "models/gated.h"
#include "models/layers.h"
#include "models/projections.h"
#include "models/rotary.h"

namespace ullage::models {
namespace {

using at::Tensor;

Tensor Leaf(at::IntArrayRef sizes, int seed) {
  at::manual_seed(static_cast<std::uint64_t>(seed));
  return at::randn(sizes).set_requires_grad(true);
}

Tensor Take(const Tensor& leaf) {
  return std::exchange(leaf.mutable_grad(), {});
}

// Values, and gradients of a weighted sum, of two functions of the same leaves.
void ExpectAlike(const std::vector<Tensor>& leaves, const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_TRUE(at::allclose(a, b, 1e-5, 1e-6));
  at::manual_seed(99);
  const Tensor direction = at::randn(a.sizes());
  (a * direction).sum().backward();
  std::vector<Tensor> gradients;
  for (const Tensor& leaf : leaves) gradients.push_back(Take(leaf));
  (b * direction).sum().backward();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], Take(leaves[i]), 1e-5, 1e-6)) << i;
  }
}

RotaryConfig OneFrequency() {
  RotaryConfig config;
  config.head_dim = 2;  // its only frequency is 1
  return config;
}

TEST(Rotary, AnglesOfA16BitModelAreNotRounded) {
  RotaryEmbedding rotary(OneFrequency());
  rotary.to(at::kBFloat16);
  const Tensor position = at::full({1, 1}, 257, at::kLong);
  const auto [cos, sin] = rotary(position, 1, at::kCPU, at::kFloat);
  EXPECT_NEAR(cos[0][0][0][0].item<double>(), 0.8193055, 1e-6);
  const auto rounded = rotary(position, 1, at::kCPU, at::kBFloat16);
  EXPECT_EQ(rounded.cos[0][0][0][1].item<float>(), 0.8203125F);  // the nearest 16-bit number
}

TEST(Rotary, TurnsPairsByPositionTimesFrequency) {
  RotaryEmbedding rotary(OneFrequency());
  const auto tables = rotary({}, 3, at::kCPU, at::kFloat);
  const Tensor x = at::tensor({1.0F, 0.0F}).expand({1, 3, 1, 2});
  const Tensor turned = ApplyRotary(x, tables, 2);
  for (int position = 0; position < 3; ++position) {
    EXPECT_NEAR(turned[0][position][0][0].item<double>(), std::cos(position), 1e-6);
    EXPECT_NEAR(turned[0][position][0][1].item<double>(), std::sin(position), 1e-6);
  }
}

TEST(Rotary, HasTheGradientOfItsFormulaAndPadsWithZeros) {
  RotaryConfig config;
  config.head_dim = 6;
  RotaryEmbedding rotary(config);
  const auto tables = rotary({}, 5, at::kCPU, at::kFloat);
  const Tensor x = Leaf({2, 5, 3, 6}, 1);
  const Tensor rotated = at::cat({-x.slice(-1, 3), x.slice(-1, 0, 3)}, -1);
  const Tensor formula = x * tables.cos + rotated * tables.sin;
  ExpectAlike({x}, ApplyRotary(x, tables, 6), formula);
  ExpectAlike({x}, ApplyRotary(x, tables, 8),
              at::constant_pad_nd(x * tables.cos + rotated * tables.sin, {0, 2}));
}

TEST(GatedSilu, HasTheGradientsOfItsFormula) {
  const Tensor gate = Leaf({7, 5}, 1), up = Leaf({7, 5}, 2);
  ExpectAlike({gate, up}, GatedSilu(gate, up), at::silu(gate) * up);
}

TEST(Project, IsEachMapByItself) {
  for (const bool has_bias : {true, false}) {
    Linear a(6, 4, at::kCPU, has_bias), b(6, 3, at::kCPU, has_bias), c(6, 4, at::kCPU, has_bias);
    std::vector<Tensor> leaves = {Leaf({5, 6}, 1)};
    for (Linear* map : {&a, &b, &c}) {
      for (Tensor& parameter : map->parameters()) {
        at::NoGradGuard no_grad;
        parameter.normal_();
        leaves.push_back(parameter);
      }
    }
    const Tensor& x = leaves[0];
    ExpectAlike(leaves, at::cat(Project(x, {&a, &b, &c}), 1), at::cat({a(x), b(x), c(x)}, 1));
  }
}

TEST(Project, OfFrozenMapsStillGivesTheInputsGradient) {
  Linear a(6, 4, at::kCPU, false), b(6, 3, at::kCPU, false);
  const at::Tensor x = Leaf({5, 6}, 1);
  for (Linear* map : {&a, &b}) map->weight.set_requires_grad(false).normal_();
  ExpectAlike({x}, at::cat(Project(x, {&a, &b}), 1), at::cat({a(x), b(x)}, 1));
}

TEST(CausalAttention, IsTheFormulaForSharedHeadsMasksAndPaddedWidths) {
  constexpr std::int64_t kBatch = 2, kLength = 7, kHeads = 6, kKeyHeads = 2, kSize = 6;
  const Tensor q = Leaf({kBatch, kLength, kHeads, kSize}, 1);
  const Tensor k = Leaf({kBatch, kLength, kKeyHeads, kSize}, 2);
  const Tensor v = Leaf({kBatch, kLength, kKeyHeads, kSize}, 3);
  const Tensor documents =
      at::tensor({0, 0, 0, 1, 1, 1, 1, 5, 2, 2, 2, 2, 2, 2}, at::kInt).view({kBatch, kLength});
  for (const std::int64_t window : {0, 3}) {
    for (const bool packed : {false, true}) {
      const Tensor used = packed ? documents : Tensor();
      Tensor hidden = at::ones({kBatch, 1, kLength, kLength}, at::kBool);
      for (std::int64_t b = 0; b < kBatch; ++b) {
        for (std::int64_t i = 0; i < kLength; ++i) {
          for (std::int64_t j = 0; j <= i; ++j) {
            const bool far = window > 0 && i - j >= window;
            const bool other = packed && documents[b][i].item<int>() != documents[b][j].item<int>();
            hidden[b][0][i][j] = far || other;
          }
        }
      }
      const auto heads = [&](const Tensor& x) {
        return x.repeat_interleave(kHeads / x.size(2), 2).transpose(1, 2);
      };
      const Tensor scores =
          (at::matmul(heads(q), heads(k).transpose(2, 3)) / std::sqrt(double(kSize)))
              .masked_fill(hidden, -INFINITY);
      const Tensor formula = at::matmul(at::softmax(scores, -1), heads(v))
                                 .transpose(1, 2)
                                 .reshape({kBatch, kLength, kHeads * kSize});
      const Tensor bias = CausalBias(kLength, window, used, at::kCPU, at::kFloat);
      EXPECT_EQ(bias.defined(), packed || window > 0);
      ExpectAlike({q, k, v}, CausalAttention(q, k, v, bias, 0), formula);
      const Tensor padded = CausalAttention(at::constant_pad_nd(q, {0, 2}),
                                            at::constant_pad_nd(k, {0, 2}), v, bias, 0);
      EXPECT_TRUE(at::allclose(padded, formula.detach(), 1e-5, 1e-6));
    }
  }
}

TEST(CausalBias, OfAWindowThatHoldsTheWholeRecordIsNone) {
  EXPECT_FALSE(CausalBias(5, 5, {}, at::kCPU, at::kFloat).defined());
  EXPECT_TRUE(CausalBias(5, 4, {}, at::kCPU, at::kFloat).defined());
}

}  // namespace
}  // namespace ullage::models
