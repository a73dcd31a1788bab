// Gradients as they arrive, the graph of a loss, and the backward pass.
#include "torchx/autograd.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <set>

#include "torchx/fake_storage.h"

namespace ullage::torchx {
namespace {

namespace ag = torch::autograd;

at::Tensor Leaf(std::vector<float> values) {
  return at::tensor(values).set_requires_grad(true);
}

// The gradients that a leaf gave.
struct Taken {
  std::vector<at::Tensor> gradients;
  GradientTap tap;
  explicit Taken(const at::Tensor& leaf)
      : tap(leaf, [this](at::Tensor gradient) { gradients.push_back(std::move(gradient)); }) {}
};

TEST(GradientTap, FiresOnceForALeafUsedTwiceAndEmptiesItsGradient) {
  const at::Tensor w = Leaf({1, 2});
  const Taken taken(w);
  (w * 3 + w * w).sum().backward();
  ASSERT_EQ(taken.gradients.size(), 1u);
  EXPECT_TRUE(at::equal(taken.gradients[0], at::tensor({5.f, 7.f})));
  EXPECT_FALSE(w.grad().defined());
}

TEST(GradientTap, EachBackwardHandsOverItsOwnGradient) {
  const at::Tensor w = Leaf({1, 2});
  const Taken taken(w);
  for (int pass = 1; pass <= 3; ++pass) (w * pass).sum().backward();
  ASSERT_EQ(taken.gradients.size(), 3u);
  for (int pass = 1; pass <= 3; ++pass) {
    EXPECT_TRUE(at::equal(taken.gradients[pass - 1], at::full({2}, float(pass))));
  }
}

TEST(GradientTap, TheUsersOwnHooksStillWork) {
  const at::Tensor w = Leaf({1, 2});
  const Taken taken(w);
  at::Tensor seen;
  class Hook final : public ag::PostAccumulateGradHook {
   public:
    explicit Hook(at::Tensor& seen) : seen_(seen) {}
    void operator()(const ag::Variable& leaf) override { seen_ = leaf.grad().clone(); }

   private:
    at::Tensor& seen_;
  };
  ag::impl::set_post_acc_grad_hooks(w, std::make_unique<Hook>(seen));
  w.register_hook([](const at::Tensor& gradient) { return gradient * 10; });
  (w * 3).sum().backward();
  ASSERT_EQ(taken.gradients.size(), 1u);
  EXPECT_TRUE(at::equal(taken.gradients[0], at::tensor({30.f, 30.f})));
  EXPECT_TRUE(at::equal(seen, at::tensor({30.f, 30.f})));
}

TEST(GradientTap, ADestroyedOneStops) {
  const at::Tensor w = Leaf({1, 2});
  auto taken = std::make_unique<Taken>(w);
  const at::Tensor y = (w * 3).sum();
  taken.reset();
  y.backward();
  EXPECT_TRUE(at::equal(w.grad(), at::tensor({3.f, 3.f})));
}

TEST(GradientTap, TheCallbackRunsUnderNoGrad) {
  const at::Tensor w = Leaf({1});
  bool grad_enabled = true;
  const GradientTap tap(w, [&](at::Tensor) { grad_enabled = at::GradMode::is_enabled(); });
  (w * w).sum().backward({}, false, /*create_graph=*/true);
  EXPECT_FALSE(grad_enabled);
}

TEST(GradientTap, AnErrorInTheCallbackEndsTheBackwardPass) {
  const at::Tensor w = Leaf({1});
  const GradientTap tap(w, [](at::Tensor) { throw std::runtime_error("no room"); });
  EXPECT_THROW(w.sum().backward(), std::runtime_error);
  EXPECT_FALSE(w.grad().defined());
}

TEST(GradientTap, AManagedLeafGivesItsGradient) {
  const at::Tensor w = Leaf({1, 2});
  const FakeStorages storages = Manage({w});
  const Taken taken(w);
  (w * w).sum().backward();
  ASSERT_EQ(taken.gradients.size(), 1u);
  EXPECT_TRUE(at::equal(taken.gradients[0], at::tensor({2.f, 4.f})));
  EXPECT_EQ(storages[0]->pins(), 0);
}

// A reentrant checkpoint: forward without a graph, recomputed in its backward. The weight is a
// module's, so the graph of the loss does not know it.
struct Checkpoint : ag::Function<Checkpoint> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<at::TensorImpl>& weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = at::Tensor(weight);
    return x * at::Tensor(weight);
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    {
      at::AutoGradMode with_grad(true);
      ag::backward({x * context->saved_data["weight"].toTensor()}, {gradients[0]});
    }
    return {x.grad(), at::Tensor()};
  }
};

TEST(GradientTap, AReentrantCheckpointDeliversSeveralContributions) {
  const at::Tensor w = Leaf({3}), x = Leaf({2});
  const FakeStorages storages = Manage({w});
  const Taken taken(w);
  const at::Tensor inner = Checkpoint::apply(x, w.getIntrusivePtr());
  const at::Tensor y = Checkpoint::apply(inner, w.getIntrusivePtr());  // x w^2
  RunBackward(y.sum(), 1, false);
  ASSERT_EQ(taken.gradients.size(), 2u);
  EXPECT_EQ(taken.gradients[0].item<float>(), 6);  // x w, of either block
  EXPECT_EQ(taken.gradients[1].item<float>(), 6);
  EXPECT_EQ(x.grad().item<float>(), 9);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(storages[0]->pins(), 0);
}

std::multiset<const ag::Node*> NodesOf(const at::Tensor& loss) {
  std::multiset<const ag::Node*> nodes;
  VisitGraph(loss, [&](const ag::Node* node) { nodes.insert(node); });
  return nodes;
}

TEST(VisitGraph, FindsExactlyTheReachableLeavesEachOnce) {
  const at::Tensor a = Leaf({1}), b = Leaf({2}), c = Leaf({3}), elsewhere = Leaf({4});
  const Taken tap_a(a), tap_b(b), tap_c(c), tap_elsewhere(elsewhere);
  const at::Tensor shared = a * b;
  const at::Tensor diamond = shared.sin() + shared.cos() + shared;
  const at::Tensor unused = c * elsewhere;
  const auto nodes = NodesOf((diamond * c.exp()).sum());
  EXPECT_EQ(nodes.count(tap_a.tap.node()), 1u);
  EXPECT_EQ(nodes.count(tap_b.tap.node()), 1u);
  EXPECT_EQ(nodes.count(tap_c.tap.node()), 1u);
  EXPECT_EQ(nodes.count(tap_elsewhere.tap.node()), 0u);
  for (const ag::Node* node : nodes) EXPECT_EQ(nodes.count(node), 1u);
}

TEST(VisitGraph, ADetachedPartIsNotReachable) {
  const at::Tensor a = Leaf({1}), b = Leaf({2});
  const Taken tap_a(a), tap_b(b);
  const auto nodes = NodesOf(((a * 2).detach() * b).sum());
  EXPECT_EQ(nodes.count(tap_a.tap.node()), 0u);
  EXPECT_EQ(nodes.count(tap_b.tap.node()), 1u);
}

TEST(VisitGraph, VisitsNothingWithoutAGraphAndTheLeafItselfWhenItIsTheLoss) {
  EXPECT_TRUE(NodesOf(at::ones({1})).empty());
  const at::Tensor a = Leaf({1});
  const Taken tap(a);
  EXPECT_EQ(NodesOf(a), std::multiset<const ag::Node*>{tap.tap.node()});
}

TEST(VisitGraph, ManagesAGraphThatIsVeryDeep) {
  at::Tensor y = Leaf({1});
  for (int i = 0; i < 20'000; ++i) y = y + 1;
  EXPECT_EQ(NodesOf(y).size(), 20'001u);
}

TEST(RunBackward, ScalesByTheSeedInTheLossesOwnDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor w = at::ones({3}, dtype).set_requires_grad(true);
    RunBackward((w * 2).sum(), 0.25, false);
    EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 0.5, dtype)));
  }
}

TEST(RunBackward, KeepsTheGraphWhenAsked) {
  const at::Tensor w = Leaf({2});
  const at::Tensor y = (w * w).sum();
  RunBackward(y, 1, /*retain_graph=*/true);
  RunBackward(y, 1, /*retain_graph=*/false);
  EXPECT_EQ(w.grad().item<float>(), 8);
  EXPECT_THROW(RunBackward(y, 1, false), std::exception);
}

}  // namespace
}  // namespace ullage::torchx
