// Models built without memory.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <stdexcept>
#include <thread>

#include "torchx/interception.h"

namespace ullage::torchx {
namespace {

TEST(ConstructOnMeta, ModulesHaveShapesAndNoMemory) {
  // 40 TB of weights.
  constexpr std::int64_t kWide = 1'000'000;
  ConstructOnMeta on_meta;
  const torch::nn::Linear linear(kWide, kWide);
  const torch::nn::Embedding embedding(kWide, kWide);
  const torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({kWide}));
  for (const at::Tensor& parameter :
       {linear->weight, linear->bias, embedding->weight, norm->weight, norm->bias}) {
    EXPECT_TRUE(parameter.is_meta());
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }
  EXPECT_EQ(linear->weight.sizes(), at::IntArrayRef({kWide, kWide}));
  EXPECT_EQ(linear->bias.sizes(), at::IntArrayRef({kWide}));
}

TEST(ConstructOnMeta, WhateverDeviceIsAskedForIsMeta) {
  ConstructOnMeta on_meta;
  EXPECT_TRUE(at::empty({2}, at::TensorOptions(at::kCPU)).is_meta());
  EXPECT_TRUE(at::arange(5, at::TensorOptions(at::kCPU)).is_meta());
  EXPECT_TRUE(at::randn({2, 2}).is_meta());
  EXPECT_TRUE(at::full({2}, 1.5).is_meta());
  EXPECT_TRUE(at::zeros({3}, at::kLong).is_meta());
  EXPECT_TRUE((at::ones({3}) * 2 + 1).cos().is_meta());
}

TEST(ConstructOnMeta, EndsWithItsScopeAlsoByAnError) {
  { ConstructOnMeta on_meta; }
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3);
  try {
    ConstructOnMeta on_meta;
    throw std::runtime_error("a constructor failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(torch::nn::Linear(2, 2)->weight.device(), at::kCPU);
}

TEST(ConstructOnMeta, Nests) {
  ConstructOnMeta outer;
  { ConstructOnMeta inner; }
  EXPECT_TRUE(at::ones({3}).is_meta());
}

TEST(ConstructOnMeta, OtherThreadsBuildAsEver) {
  ConstructOnMeta on_meta;
  bool is_cpu = false;
  std::thread([&] { is_cpu = at::ones({3}).is_cpu(); }).join();
  EXPECT_TRUE(is_cpu);
}

}  // namespace
}  // namespace ullage::torchx
