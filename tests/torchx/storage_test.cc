// Storages whose bytes come and go.
#include "torchx/storage.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>

#include "torchx/fake_storage.h"
#include "torchx/interception.h"

namespace ullage::torchx {
namespace {

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Storage, AnAbsentOneKeepsItsSizeAndThrowsItsMessageOnEveryAccess) {
  c10::Storage storage = MakeAbsentStorage(24, c10::kCPU);
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  alignas(64) std::array<float, 6> bytes = {1, 2, 3, 4, 5, 6};
  at::Tensor tensor = at::empty({2, 3});
  Bind(tensor, storage, at::kFloat, {2, 3}, /*managed=*/false);
  for (int round = 0; round < 2; ++round) {
    SetAbsent(impl, "weight is away");
    EXPECT_EQ(impl.nbytes(), 24u);
    EXPECT_NE(MessageOf([&] { (void)impl.data(); }).find("weight is away"), std::string::npos);
    EXPECT_NE(MessageOf([&] { (void)impl.mutable_data(); }).find("weight is away"),
              std::string::npos);
    EXPECT_NE(MessageOf([&] { (void)tensor.data_ptr(); }).find("weight is away"),
              std::string::npos);
    EXPECT_NE(MessageOf([&] { (void)tensor.const_data_ptr<float>(); }).find("weight is away"),
              std::string::npos);
    EXPECT_NE(MessageOf([&] { (void)tensor.mutable_data_ptr<float>(); }).find("weight is away"),
              std::string::npos);
    SetPresent(impl, bytes.data());
    EXPECT_EQ(tensor.const_data_ptr<float>(), bytes.data());
    EXPECT_EQ(tensor.mutable_data_ptr<float>(), bytes.data());
    EXPECT_EQ(tensor[1][2].item<float>(), 6);
  }
}

TEST(Storage, BindKeepsTheIdentityThatModulesAndAutogradKnow) {
  at::Tensor parameter = at::ones({4, 2}).set_requires_grad(true);
  const at::Tensor alias = parameter;
  at::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
  int hook_calls = 0;
  parameter.register_hook([&](const at::Tensor&) { ++hook_calls; });
  alignas(64) std::array<float, 6> bytes = {1, 2, 3, 4, 5, 6};
  c10::Storage storage = MakeAbsentStorage(24, c10::kCPU);
  SetPresent(*storage.unsafeGetStorageImpl(), bytes.data());
  Bind(parameter, storage, at::kFloat, {3, 2}, /*managed=*/true);
  EXPECT_EQ(alias.unsafeGetTensorImpl(), impl);
  EXPECT_EQ(alias.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_TRUE(alias.requires_grad());
  EXPECT_TRUE(alias.is_leaf());
  EXPECT_TRUE(alias.key_set().has(kInterceptionKey));
  (alias * 2).sum().backward();
  EXPECT_EQ(hook_calls, 1);
  EXPECT_TRUE(at::equal(parameter.grad(), at::full({3, 2}, 2.0)));
  Bind(parameter, storage, at::kFloat, {3, 2}, /*managed=*/false);
  EXPECT_FALSE(alias.key_set().has(kInterceptionKey));
}

TEST(Storage, BindChangesTheDtypeOfAParameter) {
  at::Tensor parameter = at::ones({4}).set_requires_grad(true);
  alignas(64) std::array<at::BFloat16, 4> bytes = {1, 2, 3, 4};
  c10::Storage storage = MakeAbsentStorage(8, c10::kCPU);
  SetPresent(*storage.unsafeGetStorageImpl(), bytes.data());
  Bind(parameter, storage, at::kBFloat16, {4}, /*managed=*/false);
  EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  parameter.sum().backward();
  EXPECT_EQ(parameter.grad().scalar_type(), at::kBFloat16);
}

TEST(Storage, ABumpedVersionMakesAStaleGraphAnError) {
  const at::Tensor w = at::ones({3}).set_requires_grad(true);
  const at::Tensor x = at::ones({3}).set_requires_grad(true);
  const at::Tensor y = (w * x).sum();
  BumpVersion(w);
  EXPECT_NE(MessageOf([&] { y.backward(); }).find("modified by an inplace operation"),
            std::string::npos);
}

TEST(Storage, AnInferenceParameterCanBeBound) {
  at::Tensor parameter;
  {
    c10::InferenceMode inference;
    parameter = at::ones({3});
  }
  const FakeStorages storages = Manage({parameter});
  c10::InferenceMode inference;
  EXPECT_EQ((parameter + 1).sum().item<float>(), 6);
  EXPECT_EQ(storages[0]->pins(), 0);
  BumpVersion(parameter);  // has no version, which is no error
}

TEST(Storage, AViewSeesMemoryOfOthers) {
  std::array<float, 4> bytes = {1, 2, 3, 4};
  const at::Tensor view = View(bytes.data(), {2, 2}, at::kFloat, c10::kCPU);
  view[0][1] = 9;
  EXPECT_EQ(bytes[1], 9);
  EXPECT_TRUE(View(nullptr, {2, 2}, at::kFloat, c10::kMeta).is_meta());
}

}  // namespace
}  // namespace ullage::torchx
