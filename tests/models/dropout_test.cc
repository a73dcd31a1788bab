// Dropout whose mask is a function of a seed.
#include "models/dropout.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "models/attention.h"
#include "models/dropout_mask.h"

namespace ullage::models {
namespace {

using at::Tensor;

std::vector<float> Factors(std::uint64_t seed, std::uint64_t first, double p, std::size_t count) {
  std::vector<float> factors(count);
  DropoutFactors(seed, first, DropThreshold(p), 2.0F, factors.data(), count);
  return factors;
}

TEST(DropoutMask, IsTheHashOfSeedAndIndex) {
  const std::uint64_t seed = 0x0123456789abcdefULL;
  for (const std::uint64_t first : {0ULL, 5ULL, (1ULL << 32) - 13}) {  // the last crosses 2^32
    const auto factors = Factors(seed, first, 0.3, 37);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const bool kept = kernels::DropoutHash(seed, first + i) >= DropThreshold(0.3);
      EXPECT_EQ(factors[i], kept ? 2.0F : 0.0F) << first + i;
    }
  }
}

TEST(DropoutMask, DoesNotDependOnWhereItIsSplit) {
  const auto whole = Factors(9, 0, 0.5, 100);
  const auto tail = Factors(9, 63, 0.5, 37);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + 63));
}

TEST(DropoutMask, DropsTheShareAskedForAndNeighboursIndependently) {
  constexpr std::size_t kCount = 1 << 20;
  for (const double p : {0.1, 0.5}) {
    const auto a = Factors(1, 0, p, kCount), b = Factors(2, 0, p, kCount);
    double dropped = 0, next_too = 0, other_seed_too = 0;
    for (std::size_t i = 0; i + 1 < kCount; ++i) {
      if (a[i] != 0) continue;
      ++dropped;
      next_too += a[i + 1] == 0;
      other_seed_too += b[i] == 0;
    }
    const double deviations = 5 * std::sqrt(p * (1 - p) / kCount);
    EXPECT_NEAR(dropped / kCount, p, deviations);
    EXPECT_NEAR(next_too / kCount, p * p, deviations);
    EXPECT_NEAR(other_seed_too / kCount, p * p, deviations);
  }
}

TEST(Dropout, KeepsAndScalesTheSameElementsInBackward) {
  at::manual_seed(4);
  const Tensor x = at::full({40, 25}, 3.0).set_requires_grad(true);
  const Tensor y = Dropout(x, 0.25);
  y.sum().backward();
  EXPECT_GT((y == 0).sum().item<int>(), 150);
  EXPECT_LT((y == 0).sum().item<int>(), 350);
  EXPECT_TRUE(at::equal(at::where(y == 0, 0.0, 4.0), y.detach()));
  EXPECT_TRUE(at::allclose(x.grad() * 3, y.detach()));
}

TEST(Dropout, FollowsTheGeneratorsSeed) {
  const Tensor x = at::ones({300});
  at::manual_seed(4);
  const Tensor first = Dropout(x, 0.5), second = Dropout(x, 0.5);
  at::manual_seed(4);
  EXPECT_TRUE(at::equal(first, Dropout(x, 0.5)));
  EXPECT_FALSE(at::equal(first, second));
}

TEST(Dropout, RoundsOnceIn16Bit) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Tensor x = at::linspace(-3, 3, 1001).to(dtype);
    at::manual_seed(8);
    const Tensor y = Dropout(x, 0.1);
    at::manual_seed(8);
    EXPECT_TRUE(at::equal(Dropout(x.to(at::kFloat), 0.1).to(dtype), y));
  }
}

TEST(Dropout, OfNothingOrWithZeroShareIsTheInput) {
  const Tensor x = at::ones({3}), empty = at::empty({0, 4});
  EXPECT_TRUE(Dropout(x, 0).is_same(x));
  EXPECT_EQ(Dropout(empty, 0.5).sizes(), empty.sizes());
}

// The function that SelfAttention computes, by autograd alone, with the given mask on the weights.
Tensor PlainAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                      std::int64_t heads, const Tensor& factors) {
  const std::int64_t size = q.size(2) / heads;
  const auto split = [&](const Tensor& x) {
    return x.view({x.size(0), x.size(1), heads, size}).transpose(1, 2);
  };
  Tensor scores = at::matmul(split(q), split(k).transpose(2, 3)) / std::sqrt(double(size));
  if (bias.defined()) scores = scores + bias.unsqueeze(1);
  const Tensor weights = at::softmax(scores, -1) * factors;
  return at::matmul(weights, split(v)).transpose(1, 2).reshape(q.sizes());
}

void ExpectGradientsOfTheFormula(std::int64_t queries, bool with_bias) {
  constexpr std::int64_t kBatch = 3, kHeads = 2, kKeys = 5, kWidth = 8;
  constexpr double kDropout = 0.4;
  at::manual_seed(21);
  const auto make = [&](std::int64_t tokens) {
    return at::randn({kBatch, tokens, kWidth}).set_requires_grad(true);
  };
  std::vector<Tensor> inputs = {make(queries), make(kKeys), make(kKeys)};
  Tensor bias;
  if (with_bias) {
    bias = at::zeros({kBatch, 1, kKeys});
    bias[1][0][4] = -1e30;
  }
  const Tensor direction = at::randn({kBatch, queries, kWidth});
  const auto run = [&](const Tensor& output) {
    (output * direction).sum().backward();
    std::vector<Tensor> results = {output.detach()};
    for (Tensor& input : inputs) {
      results.push_back(input.grad());
      input.mutable_grad() = Tensor();
    }
    return results;
  };

  at::manual_seed(22);
  Tensor factors = at::ones({kBatch, kHeads, queries, kKeys});
  ApplyDropoutMask(factors, Drop(kDropout), factors);
  const auto expected = run(PlainAttention(inputs[0], inputs[1], inputs[2], bias, kHeads, factors));
  at::manual_seed(22);
  const auto got = run(SelfAttention(inputs[0], inputs[1], inputs[2], bias, kHeads, kDropout));
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-5, 1e-6)) << i;
  }
}

TEST(SelfAttention, WithDropoutHasTheGradientsOfItsFormula) {
  for (const bool with_bias : {false, true}) {
    ExpectGradientsOfTheFormula(/*queries=*/5, with_bias);
    ExpectGradientsOfTheFormula(/*queries=*/1, with_bias);
  }
}

}  // namespace
}  // namespace ullage::models
