// Operators on managed tensors from several threads at once.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "support/run_ranks.h"
#include "torchx/fake_storage.h"

namespace ullage::torchx {
namespace {

TEST(Threads, ReadTheSameEvictedStoragesAtOnce) {
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<at::Tensor> weights, products;
  const at::Tensor x = Random({8, 16}, 1);
  for (int i = 0; i < 3; ++i) {
    weights.push_back(Random({16, 16}, 10 + i));
    products.push_back(at::matmul(x, weights.back()));
  }
  const FakeStorages storages = Manage(weights);
  std::vector<int> wrong(kThreads, 0);
  testsupport::RunOnThreads(kThreads, [&](int thread) {
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t i = static_cast<std::size_t>(round + thread) % weights.size();
      if (!at::equal(at::matmul(x, weights[i]), products[i])) ++wrong[thread];
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
  int acquires = 0;
  for (const auto& storage : storages) {
    EXPECT_EQ(storage->pins(), 0);
    acquires += storage->acquires();
  }
  EXPECT_EQ(acquires, kThreads * kRounds);
}

TEST(Threads, RunForwardAndBackwardWithWeightsInCommon) {
  constexpr int kThreads = 4;
  const at::Tensor weight = Random({6, 6}, 3);
  const at::Tensor x = Random({5, 6}, 4);
  const auto gradient_of = [&](const at::Tensor& w) {
    const at::Tensor input = x.clone().set_requires_grad(true);
    for (int layer = 0; layer < 5; ++layer) {
      at::linear(at::gelu(at::linear(input, w)), w).sum().backward();
    }
    return input.grad();
  };
  const at::Tensor expected = gradient_of(weight);
  const FakeStorages storages = Manage({weight});
  std::vector<at::Tensor> gradients(kThreads);
  testsupport::RunOnThreads(kThreads, [&](int thread) { gradients[thread] = gradient_of(weight); });
  for (const at::Tensor& gradient : gradients) EXPECT_TRUE(BitwiseEqual(gradient, expected));
  EXPECT_EQ(storages[0]->pins(), 0);
}

TEST(Threads, RegisterAndUnregisterWhileOthersCompute) {
  const at::Tensor weight = Random({8, 8}, 5);
  const at::Tensor expected = at::matmul(weight, weight);
  const FakeStorages storages = Manage({weight});
  std::vector<int> wrong(4, 0);
  testsupport::RunOnThreads(4, [&](int thread) {
    for (int round = 0; round < 100; ++round) {
      const at::Tensor own = Random({4}, 100 + thread);
      const at::Tensor doubled = own * 2;
      const FakeStorages mine = Manage({own});
      if (!at::equal(own + own, doubled)) ++wrong[thread];
      if (!at::equal(at::matmul(weight, weight), expected)) ++wrong[thread];
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace ullage::torchx
