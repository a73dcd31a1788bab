// Operators on managed tensors give the bits of unmanaged ones, and let go of what they held.
#include "torchx/interception.h"

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include "torchx/fake_storage.h"
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::torchx {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(Interception, LinearHasTheGradientsOfAnUnmanagedOne) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    ExpectLikeUnmanaged({Random({5, 7}, 1, dtype), Random({3, 7}, 2, dtype), Random({3}, 3, dtype)},
                        [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); });
  }
}

TEST(Interception, MatmulHasTheGradientsOfAnUnmanagedOne) {
  ExpectLikeUnmanaged({Random({2, 5, 7}, 1), Random({7, 4}, 2)},
                      [](const Tensors& t) { return at::matmul(t[0], t[1]); });
  ExpectLikeUnmanaged({Random({6, 6}, 1)}, [](const Tensors& t) {
    return at::matmul(t[0], t[0].t()) * t[0];  // used three times
  });
}

TEST(Interception, AnEncoderBlockHasTheGradientsOfAnUnmanagedOne) {
  const at::Tensor ids = at::tensor({3, 0, 3, 5}, at::kLong);
  ExpectLikeUnmanaged(
      {Random({8, 6}, 1), Random({6}, 2), Random({6}, 3), Random({12, 6}, 4), Random({6, 12}, 5)},
      [&](const Tensors& t) {
        const at::Tensor x = at::embedding(t[0], ids);
        const at::Tensor h = at::gelu(at::linear(at::layer_norm(x, {6}, t[1], t[2]), t[3]));
        return at::linear(x + at::linear(h, t[4]), t[0]);  // tied
      });
}

TEST(Interception, TensorsThatAutogradSavedComeThroughTheSameDoor) {
  const at::Tensor w = Random({4, 4}, 1).set_requires_grad(true);
  const FakeStorages storages = Manage({w});
  const at::Tensor x = Random({4, 4}, 2).set_requires_grad(true);
  const at::Tensor y = at::matmul(x, w.t().slice(0, 0, 4).view({4, 4})).sum();
  const int before = storages[0]->acquires();
  EXPECT_EQ(storages[0]->pins(), 0);  // nothing is present between forward and backward
  y.backward();
  EXPECT_GT(storages[0]->acquires(), before);
  EXPECT_TRUE(BitwiseEqual(x.grad(), at::matmul(at::ones({4, 4}), storages[0]->Values())));
}

TEST(Interception, ViewsAndMetadataAreNotIntercepted) {
  const at::Tensor w = Random({4, 6}, 1).set_requires_grad(true);
  const FakeStorages storages = Manage({w});
  const std::int64_t before = InterceptedOperators();
  const Tensors views = {
      w.t(),          w.view({6, 4}),    w.slice(1, 1, 3),      w.detach(),
      w.alias(),      w.transpose(0, 1), w.permute({1, 0}),     w.unsqueeze(0),
      w.select(0, 1), w.narrow(1, 0, 2), w.expand({2, 4, 6}),   w.as_strided({2, 2}, {1, 2}),
      w.chunk(2)[1],  w.unbind()[2],     w.reshape({24}),       w.contiguous(),
      w.flatten(),    w.split(2)[0],     w.view_as(w.detach()), w.to(at::kFloat)};
  EXPECT_EQ(w.sizes()[1], 6);
  EXPECT_EQ(at::size(w, 1), 6);
  EXPECT_EQ(at::empty_like(w).numel(), 24);
  EXPECT_EQ(w.new_zeros({2}).numel(), 2);
  EXPECT_EQ(InterceptedOperators() - before, 0);
  EXPECT_EQ(storages[0]->acquires(), 0);
  for (const at::Tensor& view : views) {
    EXPECT_TRUE(view.key_set().has(kInterceptionKey));
    EXPECT_EQ(FindManaged(view), storages[0].get());
    (void)at::sum(view);
  }
  EXPECT_EQ(storages[0]->acquires(), static_cast<int>(views.size()));
}

TEST(Interception, OperatorsOnOrdinaryTensorsAreNotIntercepted) {
  const at::Tensor w = Random({4}, 1);
  const FakeStorages storages = Manage({w});
  const std::int64_t before = InterceptedOperators();
  const at::Tensor x = Random({4}, 2);
  (void)at::matmul(x, x + 1).item();
  EXPECT_EQ(InterceptedOperators(), before);
  EXPECT_FALSE((w + x).key_set().has(kInterceptionKey));  // nor are results managed
  EXPECT_EQ(InterceptedOperators(), before + 1);
  EXPECT_EQ(FindManaged(x), nullptr);
  EXPECT_EQ(FindManaged(at::Tensor()), nullptr);
}

TEST(Interception, WritesOfTheSchemaAreWrittenBackAndReadsAreNot) {
  at::NoGradGuard no_grad;
  const at::Tensor w = at::ones({4}), other = at::full({4}, 3.0);
  const FakeStorages storages = Manage({w, other});
  const auto expect = [&](int writes, std::vector<float> values) {
    EXPECT_EQ(storages[0]->writes(), writes);
    EXPECT_TRUE(BitwiseEqual(storages[0]->Values(), at::tensor(values)));
    EXPECT_EQ(storages[1]->writes(), 0);
  };
  w.add_(other);
  expect(1, {4, 4, 4, 4});
  w.copy_(other);
  expect(2, {3, 3, 3, 3});
  w.slice(0, 1, 3).fill_(7);
  expect(3, {3, 7, 7, 3});
  at::_foreach_add_(Tensors{w}, Tensors{other});
  expect(4, {6, 10, 10, 6});
  at::add_out(const_cast<at::Tensor&>(w), other, other);
  expect(5, {6, 6, 6, 6});
  w.add_(w);
  EXPECT_TRUE(BitwiseEqual(storages[0]->Values(), at::full({4}, 12.0)));
  w.index_put_({at::tensor({0}, at::kLong)}, at::tensor(1.0f));
  w.mul_(0.5).zero_();
  EXPECT_TRUE(BitwiseEqual(storages[0]->Values(), at::zeros({4})));
  const int writes = storages[0]->writes();
  (void)(w + other).sum().item();
  (void)at::stack({w, other});
  EXPECT_EQ(storages[0]->writes(), writes);
  EXPECT_EQ(storages[0]->pins(), 0);
  EXPECT_EQ(storages[0]->writers(), 0);  // each was told beforehand
  EXPECT_EQ(storages[0]->abandoned(), 0);
}

TEST(Interception, RunningStatisticsThatTheSchemaHidesAreWrittenBack) {
  const at::Tensor x = Random({5, 3}, 1), mean = at::zeros({3}), variance = at::ones({3});
  const at::Tensor plain_mean = mean.clone(), plain_variance = variance.clone();
  const at::Tensor expected =
      at::batch_norm(x, {}, {}, plain_mean, plain_variance, true, 0.1, 1e-5, false);
  const FakeStorages storages = Manage({mean, variance});
  const at::Tensor y = at::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, false);
  EXPECT_TRUE(BitwiseEqual(y, expected));
  EXPECT_TRUE(BitwiseEqual(storages[0]->Values(), plain_mean));
  EXPECT_TRUE(BitwiseEqual(storages[1]->Values(), plain_variance));
  EXPECT_FALSE(at::equal(plain_mean, at::zeros({3})));
  EXPECT_EQ(storages[0]->writes(), 1);
}

TEST(Interception, AnOperatorThatThrowsLetsGoOfEverythingAndWritesNothingBack) {
  at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({2, 3}), b = at::ones({4, 5});
  const FakeStorages storages = Manage({a, b});
  EXPECT_THROW((void)at::matmul(a, b), c10::Error);
  EXPECT_THROW(a.add_(b), c10::Error);
  storages[1]->FailNextAcquire();
  EXPECT_THROW((void)at::stack({a, b}), StateError);
  for (const auto& storage : storages) {
    EXPECT_EQ(storage->pins(), 0);
    EXPECT_EQ(storage->writes(), 0);
    EXPECT_EQ(storage->writers(), 0);
  }
  EXPECT_EQ(storages[0]->abandoned(), 1);  // by add_
  EXPECT_EQ(storages[1]->abandoned(), 0);
  EXPECT_EQ(at::matmul(a.t(), a).sum().item<float>(), 18);
}

TEST(Interception, OptionalTensorsAndListsAreLookedInto) {
  const at::Tensor x = at::ones({2, 3}), weight = at::ones({4, 3}), bias = at::ones({4});
  const at::Tensor index = at::tensor({1, 0}, at::kLong);
  const FakeStorages storages = Manage({weight, bias, index});
  EXPECT_EQ(at::linear(x, weight, bias).sum().item<float>(), 32);
  EXPECT_EQ(at::linear(x, weight).sum().item<float>(), 24);
  EXPECT_EQ(storages[0]->acquires(), 2);
  EXPECT_EQ(storages[1]->acquires(), 1);
  EXPECT_EQ(at::cat({x.flatten(), bias, bias}).sum().item<float>(), 14);
  EXPECT_EQ(storages[1]->acquires(), 3);  // once for each mention
  EXPECT_EQ(x.index({at::indexing::Slice(), index}).sum().item<float>(), 4);
  EXPECT_EQ(storages[2]->acquires(), 1);
  EXPECT_EQ(at::_foreach_norm({weight, bias}).size(), 2u);
  EXPECT_EQ(at::tensor_split(x.flatten(), index, 0).size(), 3u);  // a view that reads
  for (const auto& storage : storages) EXPECT_EQ(storage->pins(), 0);
}

TEST(Interception, AResizeIsRefusedNamingTheParameter) {
  at::NoGradGuard no_grad;
  const at::Tensor w = at::ones({4});
  const FakeStorages storages = Manage({w});
  try {
    w.resize_({100});
    ADD_FAILURE() << "resized";
  } catch (const StateError& error) {
    EXPECT_NE(std::string(error.what()).find("'t0'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("aten::resize_"), std::string::npos) << error.what();
  }
  EXPECT_EQ(storages[0]->pins(), 0);
  EXPECT_THROW(at::add_out(const_cast<at::Tensor&>(w), at::ones({50}), at::ones({50})), StateError);
  EXPECT_EQ(storages[0]->pins(), 0);
  EXPECT_EQ(w.storage().nbytes(), 16u);
}

TEST(Interception, RawAccessThrowsByNameWhileOperatorsStillRead) {
  const at::Tensor w = at::tensor({1.f, 2.f, 3.f});
  const FakeStorages storages = Manage({w});
  const auto expect_named = [](const std::function<void()>& access) {
    try {
      access();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("the bytes of 't0' are not here"),
                std::string::npos);
    }
  };
  expect_named([&] { (void)w.data_ptr(); });
  expect_named([&] { (void)w.data_ptr<float>(); });
  expect_named([&] { (void)w.const_data_ptr<float>(); });
  expect_named([&] { (void)w.mutable_data_ptr<float>(); });
  expect_named([&] { (void)w.accessor<float, 1>(); });
  expect_named([&] { (void)w.detach().slice(0, 1).const_data_ptr(); });
  EXPECT_EQ(w[1].item<float>(), 2);
  EXPECT_EQ(w.sum().item<float>(), 6);
  EXPECT_TRUE(at::equal(w, at::tensor({1.f, 2.f, 3.f})));
  EXPECT_TRUE(at::allclose(w, w));
  EXPECT_TRUE((w > 2).any().item<bool>());
}

TEST(Interception, ACloneIsAnOrdinaryTensor) {
  const at::Tensor w = at::tensor({1.f, 2.f, 3.f}).set_requires_grad(true);
  const FakeStorages storages = Manage({w});
  const at::Tensor copy = w.detach().clone();
  EXPECT_FALSE(copy.key_set().has(kInterceptionKey));
  EXPECT_EQ(copy.const_data_ptr<float>()[2], 3);
  EXPECT_EQ(w.to(at::kDouble).const_data_ptr<double>()[2], 3);
  EXPECT_FALSE(w.detach().t().contiguous().clone().key_set().has(kInterceptionKey));
}

TEST(Interception, AnLstmDoesNotHoldAllItsWeightsAtOnce) {
  at::manual_seed(3);
  torch::nn::LSTM plain(torch::nn::LSTMOptions(5, 7).num_layers(4).bidirectional(true));
  torch::nn::LSTM managed(torch::nn::LSTMOptions(5, 7).num_layers(4).bidirectional(true));
  FakeStorages storages;
  {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      managed->parameters()[i].copy_(plain->parameters()[i]);
      storages.push_back(
          std::make_unique<FakeStorage>("p" + std::to_string(i), managed->parameters()[i]));
    }
  }
  ASSERT_EQ(storages.size(), 32u);
  const at::Tensor x = Random({6, 2, 5}, 1);
  FakeStorage::ResetPeak();
  const at::Tensor actual = std::get<0>(managed->forward(x));
  actual.sum().backward();
  EXPECT_LE(FakeStorage::Peak(), 6);
  const at::Tensor expected = std::get<0>(plain->forward(x));
  expected.sum().backward();
  EXPECT_TRUE(BitwiseEqual(actual, expected));
  for (std::size_t i = 0; i < storages.size(); ++i) {
    EXPECT_TRUE(BitwiseEqual(managed->parameters()[i].grad(), plain->parameters()[i].grad()));
    EXPECT_EQ(storages[i]->pins(), 0);
  }
}

// An operator that is not torch's own: it may do anything with its arguments.
at::Tensor AddOneToAll(const at::Tensor& x) {
  at::NoGradGuard no_grad;
  float* data = x.detach().mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] += 1;
  return x.sum();
}

TORCH_LIBRARY_FRAGMENT(ullage_torchx_test, library) {
  library.def("add_one_to_all(Tensor x) -> Tensor", &AddOneToAll);
}

TEST(Interception, WhatAForeignOperatorWroteIsWrittenBack) {
  const at::Tensor w = at::tensor({1.f, 2.f});
  const FakeStorages storages = Manage({w});
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("ullage_torchx_test::add_one_to_all", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  EXPECT_EQ(op.call(w).item<float>(), 5);
  EXPECT_TRUE(BitwiseEqual(storages[0]->Values(), at::tensor({2.f, 3.f})));
  EXPECT_EQ(storages[0]->pins(), 0);
}

TEST(Interception, AfterUnregisterAPlainTensorIsUsedAsEver) {
  const at::Tensor w = at::tensor({1.f, 2.f}).set_requires_grad(true);
  {
    const FakeStorages storages = Manage({w});
    EXPECT_EQ(w.sum().item<float>(), 3);
  }
  EXPECT_THROW((void)w.sum().item(), std::exception);  // absent, and nobody to bring it
  const at::Tensor values = at::tensor({4.f, 5.f});
  Bind(w, values.storage(), at::kFloat, {2}, /*managed=*/false);
  const std::int64_t before = InterceptedOperators();
  (w * w).sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::tensor({8.f, 10.f})));
  EXPECT_EQ(InterceptedOperators(), before);
}

}  // namespace
}  // namespace ullage::torchx
