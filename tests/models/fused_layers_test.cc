// Fused parts of layers give the values and gradients of the operators that they stand for.
#include "models/fused_layers.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <vector>

#include "models/dropout.h"
#include "models/layers.h"
#include "models/projections.h"
#include "torchx/fake_storage.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using at::Tensor;

constexpr std::int64_t kTokens = 21, kWidth = 256, kInner = 64;

// Parameters of a layer's second half and of its attention output.
struct Parts {
  explicit Parts(at::ScalarType dtype)
      : up(kWidth, kInner, at::kCPU), down(kInner, kWidth, at::kCPU), norm(kWidth, 1e-5, at::kCPU) {
    at::manual_seed(1);
    const at::NoGradGuard no_grad;
    for (torch::nn::Module* module : std::vector<torch::nn::Module*>{&up, &down, &norm}) {
      for (Tensor& parameter : module->parameters()) {
        parameter.normal_(0, 0.3);
        if (module == &norm) parameter.add_(1);
      }
      module->to(dtype);
    }
    x = at::randn({kTokens, kWidth}, dtype).set_requires_grad(true);
    narrow = at::randn({kTokens, kInner}, dtype).set_requires_grad(true);
  }

  std::vector<Tensor> Parameters() const {
    return {up.weight, up.bias, down.weight, down.bias, norm.weight, norm.bias};
  }

  Linear up, down;
  LayerNorm norm;
  Tensor x, narrow;
};

struct Result {
  Tensor value;
  std::vector<Tensor> gradients;
};

// With the random numbers of one seed, and the gradients of a weighted sum.
Result RunWith(const Parts& parts, const std::function<Tensor()>& body) {
  at::manual_seed(7);
  Result result;
  result.value = body();
  at::manual_seed(8);
  (result.value * at::randn(result.value.sizes(), result.value.scalar_type())).sum().backward();
  std::vector<Tensor> leaves = parts.Parameters();
  leaves.push_back(parts.x);
  leaves.push_back(parts.narrow);
  for (const Tensor& leaf : leaves) {
    result.gradients.push_back(std::exchange(leaf.mutable_grad(), Tensor()));
  }
  return result;
}

double Error(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

void ExpectAlike(const Result& fused, const Result& plain, double tolerance) {
  EXPECT_LT(Error(fused.value, plain.value), tolerance);
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    ASSERT_EQ(fused.gradients[i].defined(), plain.gradients[i].defined()) << i;
    if (!plain.gradients[i].defined()) continue;
    EXPECT_EQ(fused.gradients[i].scalar_type(), plain.gradients[i].scalar_type());
    EXPECT_TRUE(fused.gradients[i].is_contiguous());
    EXPECT_LT(Error(fused.gradients[i], plain.gradients[i]), tolerance) << i;
  }
}

double Tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : dtype == at::kHalf ? 2e-3 : 1.5e-2;
}

TEST(FusedLayers, FeedForwardIsItsOperatorsOneByOne) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double p : {0.0, 0.3}) {
      const Parts parts(dtype);
      const Result fused =
          RunWith(parts, [&] { return FeedForward(parts.x, parts.up, parts.down, parts.norm, p); });
      const Result plain = RunWith(parts, [&] {
        const Tensor inner = parts.down(at::gelu(parts.up(parts.x)));
        return parts.norm(Dropout(inner, p) + parts.x);
      });
      ExpectAlike(fused, plain, Tolerance(dtype));
    }
  }
}

TEST(FusedLayers, DenseAddNormIsItsOperatorsOneByOne) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double p : {0.0, 0.3}) {
      const Parts parts(dtype);
      const Result fused = RunWith(
          parts, [&] { return DenseAddNorm(parts.narrow, parts.down, parts.x, parts.norm, p); });
      const Result plain = RunWith(
          parts, [&] { return parts.norm(Dropout(parts.down(parts.narrow), p) + parts.x); });
      ExpectAlike(fused, plain, Tolerance(dtype));
    }
  }
}

// A classifier's last layer asks for the first token of each record: rows that are far apart.
TEST(FusedLayers, TakeRowsThatAreFarApart) {
  const Parts parts(at::kFloat);
  const auto every_third = [](const Tensor& x) { return x.view({7, 3, -1}).select(1, 0); };
  const Result fused = RunWith(parts, [&] {
    const Tensor attended =
        DenseAddNorm(every_third(parts.narrow), parts.down, every_third(parts.x), parts.norm, 0.3);
    return FeedForward(attended, parts.up, parts.down, parts.norm, 0.3);
  });
  const Result plain = RunWith(parts, [&] {
    const Tensor attended =
        parts.norm(Dropout(parts.down(every_third(parts.narrow)), 0.3) + every_third(parts.x));
    return parts.norm(Dropout(parts.down(at::gelu(parts.up(attended))), 0.3) + attended);
  });
  ExpectAlike(fused, plain, 5e-6);
}

TEST(FusedLayers, FrozenParametersGetNoGradient) {
  Parts parts(at::kFloat);
  for (const Tensor& parameter : {parts.up.weight, parts.down.bias, parts.norm.weight}) {
    Tensor(parameter).set_requires_grad(false);
  }
  parts.x.set_requires_grad(false);
  const Result fused =
      RunWith(parts, [&] { return FeedForward(parts.x, parts.up, parts.down, parts.norm, 0.1); });
  const Result plain = RunWith(parts, [&] {
    return parts.norm(Dropout(parts.down(at::gelu(parts.up(parts.x))), 0.1) + parts.x);
  });
  EXPECT_FALSE(fused.gradients[0].defined());
  EXPECT_TRUE(fused.gradients[1].defined());
  EXPECT_FALSE(fused.gradients[3].defined());
  EXPECT_FALSE(fused.gradients[4].defined());
  ExpectAlike(fused, plain, 2e-6);
}

// They read weights without an operator of torch's, which must be present all the same.
TEST(FusedLayers, GatherManagedParametersAndLetThemGo) {
  const Parts parts(at::kFloat);
  const auto body = [&] {
    return FeedForward(DenseAddNorm(parts.narrow, parts.down, parts.x, parts.norm, 0.1), parts.up,
                       parts.down, parts.norm, 0.1);
  };
  const Result plain = RunWith(parts, body);
  const torchx::FakeStorages storages = torchx::Manage(parts.Parameters());
  const Result managed = RunWith(parts, body);
  EXPECT_TRUE(at::equal(managed.value, plain.value));
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(managed.gradients[i], plain.gradients[i])) << i;
  }
  for (const auto& storage : storages) {
    EXPECT_GT(storage->acquires(), 0);
    EXPECT_EQ(storage->pins(), 0);
    EXPECT_EQ(storage->writes(), 0);
  }
}

TEST(FusedLayers, BiasGradientsAreSumsOfColumns) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(3);
    std::vector<Tensor> gradients;
    for (int i = 0; i < 3; ++i) gradients.push_back(at::randn({5000, 72}, dtype));
    const std::vector<Tensor> sums = BiasGradients(gradients);
    ASSERT_EQ(sums.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sums[i].scalar_type(), dtype);
      EXPECT_LT(Error(sums[i], gradients[i].to(at::kDouble).sum(0)), Tolerance(dtype));
    }
  }
}

TEST(FusedLayers, RefuseASecondDerivative) {
  const Parts parts(at::kFloat);
  const Tensor y = FeedForward(parts.x, parts.up, parts.down, parts.norm, 0).sum();
  EXPECT_THROW(y.backward({}, /*retain_graph=*/true, /*create_graph=*/true), UnsupportedError);
}

}  // namespace
}  // namespace ullage::models
