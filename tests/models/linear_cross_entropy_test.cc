// The loss head without logits equals the one with them.
#include "models/linear_cross_entropy.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "memory_meter.h"

namespace ullage::models {
namespace {

using at::Tensor;

struct Head {
  Tensor hidden, weight, targets;

  Head(std::int64_t rows, std::int64_t vocabulary, std::int64_t width,
       at::ScalarType dtype = at::kFloat) {
    at::manual_seed(4);
    hidden = at::randn({rows, width}).to(dtype).set_requires_grad(true);
    weight = (at::randn({vocabulary, width}) * 0.3).to(dtype).set_requires_grad(true);
    targets = at::randint(vocabulary, {rows}, at::kLong);
  }

  Tensor Dense() const {
    return at::cross_entropy_loss(at::linear(hidden, weight).to(at::kFloat), targets, {},
                                  at::Reduction::Sum, kIgnoredLabel);
  }
};

struct Result {
  double loss = 0;
  Tensor hidden_gradient, weight_gradient;
};

Result Differentiate(Head& head, const Tensor& loss, double seed = 1) {
  loss.backward(at::full({}, seed, loss.options()));
  return {loss.item<double>(), std::exchange(head.hidden.mutable_grad(), {}),
          std::exchange(head.weight.mutable_grad(), {})};
}

double Difference(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Case C11.
TEST(LinearCrossEntropy, Of512RowsAnd32000WordsEqualsTheDenseOne) {
  Head head(512, 32000, 16);
  head.targets.slice(0, 100, 300).fill_(kIgnoredLabel);
  const LossHeadForm form = FormOfLossHead(32000, at::kCPU);
  EXPECT_EQ(form.chunk, 131);
  EXPECT_TRUE(form.drops_ignored);
  const double share = 1.0 / 312;  // the mean, as users have it
  const Result dense = Differentiate(head, head.Dense(), share);
  const Result chunked =
      Differentiate(head, LinearCrossEntropy(head.hidden, head.weight, head.targets, form), share);
  EXPECT_NEAR(chunked.loss * share, dense.loss * share, 1e-6);
  EXPECT_LE(Difference(chunked.hidden_gradient, dense.hidden_gradient), 1e-6);
  EXPECT_LE(Difference(chunked.weight_gradient, dense.weight_gradient), 1e-6);
  EXPECT_EQ(chunked.hidden_gradient.slice(0, 100, 300).abs().sum().item<float>(), 0.0F);
}

TEST(LinearCrossEntropy, PeaksAtTheChunksLogitsAndNotAtAll) {
  constexpr std::int64_t kRows = 512, kVocabulary = 8000, kWidth = 4;
  Head head(kRows, kVocabulary, kWidth);
  const std::int64_t gradients = 4 * kWidth * (kRows + kVocabulary);
  for (const std::int64_t chunk : {32, 128}) {
    const std::int64_t peak = PeakBytes([&] {
      LinearCrossEntropy(head.hidden, head.weight, head.targets, {chunk, true});
    });
    const std::int64_t logits = 4 * chunk * kVocabulary;
    EXPECT_GE(peak, 2 * logits);
    EXPECT_LE(peak, 2 * logits + 2 * gradients + 100'000) << chunk;
  }
}

TEST(LinearCrossEntropy, DropsIgnoredRowsBeforeTheProduct) {
  constexpr std::int64_t kRows = 256, kVocabulary = 8000;
  Head head(kRows, kVocabulary, 4);
  head.targets.slice(0, 16).fill_(kIgnoredLabel);
  const std::int64_t peak = PeakBytes([&] {
    LinearCrossEntropy(head.hidden, head.weight, head.targets, {kRows, true});
  });
  EXPECT_LE(peak, 3 * 4 * 16 * kVocabulary);  // 16 rows, not 256
}

TEST(LinearCrossEntropy, FormChangesNothingBeyondRounding) {
  Head head(45, 70, 8);
  head.targets[3].fill_(kIgnoredLabel);
  head.targets.slice(0, 20, 30).fill_(kIgnoredLabel);
  const Result dense = Differentiate(head, head.Dense());
  for (const bool drops_ignored : {true, false}) {
    for (const std::int64_t chunk : {1, 7, 44, 45, 1000}) {
      SCOPED_TRACE(chunk);
      const LossHeadForm form{chunk, drops_ignored};
      const Result chunked =
          Differentiate(head, LinearCrossEntropy(head.hidden, head.weight, head.targets, form));
      EXPECT_NEAR(chunked.loss, dense.loss, 1e-4);
      EXPECT_LE(Difference(chunked.hidden_gradient, dense.hidden_gradient), 1e-6);
      EXPECT_LE(Difference(chunked.weight_gradient, dense.weight_gradient), 1e-5);
    }
  }
}

TEST(LinearCrossEntropy, In16BitIsAsNearToTheTruthAsTheDenseOne) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    Head head(64, 200, 16, dtype), exact = head;
    exact.hidden = head.hidden.detach().to(at::kFloat).set_requires_grad(true);
    exact.weight = head.weight.detach().to(at::kFloat).set_requires_grad(true);
    const Result truth = Differentiate(exact, exact.Dense());
    const Result dense = Differentiate(head, head.Dense());
    const Result chunked =
        Differentiate(head, LinearCrossEntropy(head.hidden, head.weight, head.targets, {8, true}));
    EXPECT_EQ(chunked.hidden_gradient.scalar_type(), dtype);
    EXPECT_EQ(chunked.weight_gradient.scalar_type(), dtype);
    EXPECT_NEAR(chunked.loss, truth.loss, 0.01 * truth.loss);
    const auto error = [](const Tensor& a, const Tensor& b) {
      return (a.to(at::kFloat) - b).norm().item<double>();
    };
    EXPECT_LE(error(chunked.hidden_gradient, truth.hidden_gradient),
              1.25 * error(dense.hidden_gradient, truth.hidden_gradient));
    EXPECT_LE(error(chunked.weight_gradient, truth.weight_gradient),
              1.25 * error(dense.weight_gradient, truth.weight_gradient));
  }
}

TEST(LinearCrossEntropy, OfOneWordThatIsCertainKeepsItsSmallGradient) {
  // p = 1 - 1e-4 at the target: subtracting 1 from the rounded p would give 0 in 16 bit.
  Head head(1, 2, 1, at::kBFloat16);
  head.hidden = at::full({1, 1}, 1.0, at::kBFloat16).set_requires_grad(true);
  head.weight = at::tensor({9.1875F, 0.0F}).view({2, 1}).to(at::kBFloat16).set_requires_grad(true);
  head.targets.fill_(0);
  const Result result =
      Differentiate(head, LinearCrossEntropy(head.hidden, head.weight, head.targets, {4, true}));
  EXPECT_NEAR(result.weight_gradient[0][0].item<double>(), -1.02e-4, 1e-6);
  EXPECT_NEAR(result.weight_gradient[1][0].item<double>(), 1.02e-4, 1e-6);
}

TEST(LinearCrossEntropy, FrozenSidesAndEvaluationsGetNoGradient) {
  Head head(9, 20, 4);
  head.weight.set_requires_grad(false);
  LinearCrossEntropy(head.hidden, head.weight, head.targets, {4, true}).backward();
  EXPECT_TRUE(head.hidden.grad().defined());
  EXPECT_FALSE(head.weight.grad().defined());
  const at::NoGradGuard no_grad;
  const Tensor loss = LinearCrossEntropy(head.hidden, head.weight, head.targets, {4, true});
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item<double>(), head.Dense().item<double>(), 1e-4);
}

TEST(LinearCrossEntropy, OfNoLabelsIsZeroWithZeroGradients) {
  for (const std::int64_t rows : {0, 5}) {
    Head head(rows, 20, 4);
    head.targets.fill_(kIgnoredLabel);
    const Result result =
        Differentiate(head, LinearCrossEntropy(head.hidden, head.weight, head.targets, {4, true}));
    EXPECT_EQ(result.loss, 0.0);
    EXPECT_EQ(result.weight_gradient.abs().sum().item<float>(), 0.0F);
    EXPECT_EQ(result.hidden_gradient.sizes(), head.hidden.sizes());
    EXPECT_EQ(result.hidden_gradient.abs().sum().item<float>(), 0.0F);
  }
}

TEST(LinearCrossEntropy, KeepsItsGradientsForARetainedGraph) {
  Head head(9, 20, 4);
  const Tensor loss = LinearCrossEntropy(head.hidden, head.weight, head.targets, {4, true});
  loss.backward({}, /*retain_graph=*/true);
  const Tensor first = std::exchange(head.weight.mutable_grad(), {});
  loss.backward();
  EXPECT_TRUE(at::equal(head.weight.grad(), first));
}

}  // namespace
}  // namespace ullage::models
