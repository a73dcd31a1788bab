// A block that is run again in backward gives what it would have given.
#include "activations/recompute.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <vector>

#include "torchx/autograd.h"
#include "torchx/fake_storage.h"
#include "ullage/error.h"

namespace ullage::activations {
namespace {

using at::Tensor;
using torchx::BitwiseEqual;
using Tensors = std::vector<Tensor>;

// Three layers of the form tanh(x w' + b), with dropout.
struct Net {
  Tensors weights, biases;

  Net() {
    for (std::uint64_t i = 0; i < 3; ++i) {
      weights.push_back(torchx::Random({7, 7}, 10 + i).set_requires_grad(true));
      biases.push_back(torchx::Random({7}, 20 + i).set_requires_grad(true));
    }
  }

  Tensor Layer(const Tensor& x, std::size_t i) const {
    return at::dropout(at::tanh(at::linear(x, weights[i], biases[i])), 0.3, /*train=*/true) + x;
  }

  Tensor Run(const Tensor& x, bool recompute, KeptInputs* inputs = nullptr) const {
    Tensor y = x;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Block block = [this, i](const Tensor& input) { return Layer(input, i); };
      y = recompute ? Recompute(block, y, {weights[i], biases[i]}, inputs) : block(y);
    }
    return y;
  }

  Tensors Gradients() {
    Tensors gradients;
    for (Tensors* list : {&weights, &biases}) {
      for (Tensor& tensor : *list) gradients.push_back(std::exchange(tensor.mutable_grad(), {}));
    }
    return gradients;
  }
};

Tensor Input(bool requires_grad = true) {
  return torchx::Random({5, 7}, 1).set_requires_grad(requires_grad);
}

TEST(Recompute, GivesTheSameBitsWithDropoutAndLeavesTheGeneratorAlone) {
  for (const bool input_needs_gradient : {true, false}) {
    Tensors results[2];
    for (const bool recompute : {false, true}) {
      Net net;
      const Tensor x = Input(input_needs_gradient);
      at::manual_seed(5);
      const Tensor y = net.Run(x, recompute);
      const Tensor between = at::rand({3});  // what is drawn in between changes nothing
      (y * y).sum().backward();
      Tensors& result = results[recompute ? 1 : 0];
      result = net.Gradients();
      result.insert(result.end(), {y.detach(), between, at::rand({3}), x.grad()});
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(BitwiseEqual(results[0][i], results[1][i])) << i;
    }
  }
}

TEST(Recompute, KeepsNothingInsideTheBlockUntilBackward) {
  for (const bool recompute : {false, true}) {
    const Tensor w = torchx::Random({7, 7}, 3).set_requires_grad(true);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> inside;
    int runs = 0;
    const Block block = [&](const Tensor& x) {
      ++runs;
      const Tensor hidden = at::tanh(at::matmul(x, w));
      inside.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
          hidden.storage().unsafeGetStorageImpl()));
      return at::sin(hidden);
    };
    const Tensor y = recompute ? Recompute(block, Input(), {w}) : block(Input());
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(inside[0].expired(), recompute);
    y.sum().backward();
    EXPECT_EQ(runs, recompute ? 2 : 1);
  }
}

TEST(Recompute, FrozenParametersAndUnusedOnesGetNoGradient) {
  const Tensor used = torchx::Random({7, 7}, 1).set_requires_grad(true);
  const Tensor frozen = torchx::Random({7, 7}, 2);
  const Tensor unused = torchx::Random({7, 7}, 3).set_requires_grad(true);
  const Block block = [&](const Tensor& x) { return at::matmul(at::matmul(x, used), frozen); };
  Recompute(block, Input(false), {used, frozen, unused}).sum().backward();
  EXPECT_TRUE(used.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_FALSE(unused.grad().defined());
}

TEST(Recompute, IsAPlainCallWhereNoGradientIsWanted) {
  const Tensor w = torchx::Random({7, 7}, 1);
  int runs = 0;
  const Block block = [&](const Tensor& x) {
    ++runs;
    return at::matmul(x, w);
  };
  EXPECT_FALSE(Recompute(block, Input(false), {w}).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(Recompute(block, Input(true), {w}).requires_grad());
  EXPECT_EQ(runs, 2);
}

TEST(Recompute, AGraphThatIsRetainedRunsAgain) {
  Net net;
  const Tensor x = Input();
  at::manual_seed(5);
  const Tensor loss = net.Run(x, true).sum();
  loss.backward({}, /*retain_graph=*/true);
  const Tensors first = net.Gradients();
  loss.backward();
  const Tensors second = net.Gradients();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(BitwiseEqual(first[i], second[i]));
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Recompute, NestsWithTheSameBits) {
  Net net;
  const auto run = [&](bool recompute) {
    const Tensor x = Input();
    at::manual_seed(5);
    Tensor y;
    if (recompute) {
      Tensors all = net.weights;
      all.insert(all.end(), net.biases.begin(), net.biases.end());
      y = Recompute([&](const Tensor& input) { return net.Run(input, true); }, x, all);
    } else {
      y = net.Run(x, false);
    }
    y.sum().backward();
    Tensors result = net.Gradients();
    result.push_back(x.grad());
    return result;
  };
  const Tensors plain = run(false), nested = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(BitwiseEqual(plain[i], nested[i]));
}

TEST(Recompute, AParameterThatChangedBeforeBackwardIsAnError) {
  Net net;
  const Tensor loss = net.Run(Input(), true).sum();
  {
    const at::NoGradGuard no_grad;
    net.weights[1].add_(1);
  }
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(KeptInputs, ChangeNoBit) {
  std::vector<Tensors> results;
  for (const std::int64_t room : {0, 2, 3}) {  // two of the three layers, then all
    at::manual_seed(3);
    Net net;
    const Tensor x = Input();
    KeptInputs inputs(room);
    const Tensor y = net.Run(x, true, room > 0 ? &inputs : nullptr);
    y.sum().backward();
    results.push_back(net.Gradients());
    results.back().push_back(x.grad());
    results.back().push_back(y.detach());
  }
  for (const Tensors& result : results) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_TRUE(BitwiseEqual(results[0][i], result[i])) << i;
    }
  }
}

TEST(KeptInputs, LieInOnePieceThatIsGoneAfterBackward) {
  Net net;
  c10::weak_intrusive_ptr<c10::StorageImpl> piece(c10::intrusive_ptr<c10::StorageImpl>{});
  std::vector<const void*> places;
  Tensor loss;
  {
    KeptInputs inputs(3);
    Tensor y = Input();
    for (std::size_t i = 0; i < 3; ++i) {
      const Block block = [&, i](const Tensor& x) {
        if (places.size() <= i) {
          places.push_back(x.const_data_ptr());
          piece = x.storage().getWeakStorageImpl();
        }
        return net.Layer(x, i);
      };
      y = Recompute(block, y, {net.weights[i], net.biases[i]}, &inputs);
    }
    loss = y.sum();
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto place = static_cast<const char*>(places[i]) - static_cast<const char*>(places[0]);
    EXPECT_EQ(place, static_cast<std::ptrdiff_t>(512 * i));
  }
  EXPECT_FALSE(piece.expired());
  torchx::RunBackward(loss, 1.0, false);
  EXPECT_TRUE(piece.expired());
}

TEST(KeptInputs, OfAnotherShapeOrTypeStayWhereTheyAre) {
  KeptInputs inputs(3);
  const at::NoGradGuard no_grad;
  const Tensor first = Input(false), other = torchx::Random({4, 7}, 2), half = first.to(at::kHalf);
  EXPECT_FALSE(inputs.Keep(first).is_same(first));
  EXPECT_TRUE(inputs.Keep(other).is_same(other));
  EXPECT_TRUE(inputs.Keep(half).is_same(half));
  EXPECT_TRUE(BitwiseEqual(inputs.Keep(first), first));
}

TEST(Recompute, RefusesSecondDerivatives) {
  Net net;
  const Tensor x = Input();
  EXPECT_THROW(torch::autograd::grad({net.Run(x, true).sum()}, {x}, {}, {}, /*create_graph=*/true),
               UnsupportedError);
}

TEST(Recompute, AWalkOverTheGraphFindsTheParametersAndEachGivesOneGradient) {
  Net net;
  std::vector<int> gradients(3, 0);
  std::vector<std::unique_ptr<torchx::GradientTap>> taps;
  for (std::size_t i = 0; i < 3; ++i) {
    taps.push_back(std::make_unique<torchx::GradientTap>(
        net.weights[i], [&gradients, i](const Tensor&) { ++gradients[i]; }));
  }
  const Tensor loss = net.Run(Input(), true).sum();
  int found = 0;
  torchx::VisitGraph(loss, [&](const torch::autograd::Node* node) {
    for (const auto& tap : taps) found += tap->node() == node ? 1 : 0;
  });
  EXPECT_EQ(found, 3);
  torchx::RunBackward(loss, 1.0, false);
  EXPECT_EQ(gradients, (std::vector<int>{1, 1, 1}));
}

TEST(Recompute, WorksOnWeightsWhoseBytesComeAndGo) {
  const auto run = [](const Tensors& leaves) {
    const Block block = [leaves](const Tensor& x) {
      return at::tanh(at::linear(x, leaves[0], leaves[1]));
    };
    const Tensor once = Recompute(block, torchx::Random({5, 7}, 1), {leaves[0], leaves[1]});
    return Recompute(block, once, {leaves[0], leaves[1]});  // shared by two blocks
  };
  torchx::ExpectLikeUnmanaged({torchx::Random({7, 7}, 2), torchx::Random({7}, 3)}, run);
}

}  // namespace
}  // namespace ullage::activations
