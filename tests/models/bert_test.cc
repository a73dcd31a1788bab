// What BERT does beyond agreeing with transformers: modes, odd batches, Meta.
#include "models/bert.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "tiny_model.h"
#include "torchx/meta_kernels.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using at::Tensor;

BertForSequenceClassification& Bert(Model& model) {
  return dynamic_cast<BertForSequenceClassification&>(model.module());
}

Tensor Ids(std::int64_t records, std::int64_t tokens) {
  return (at::arange(records * tokens, at::kLong) * 7 % 49 + 1).view({records, tokens});
}

Tensor Gradient(Model& model, const char* name) {
  return model.module().named_parameters()[name].grad();
}

TEST(Bert, DropsOutInTrainingOnlyAndByTheGenerator) {
  const auto model = TinyModel();
  const Tensor ids = Ids(3, 6), mask = at::ones({3, 6}, at::kLong);
  const auto logits = [&] {
    at::manual_seed(11);
    return model->Logits(ids, mask).detach();
  };
  model->module().train();
  const Tensor trained = logits();
  EXPECT_TRUE(at::equal(trained, logits()));
  EXPECT_FALSE(at::allclose(trained, model->Logits(ids, mask)));  // other draws
  model->module().eval();
  const Tensor evaluated = logits();
  EXPECT_FALSE(at::allclose(trained, evaluated));
  EXPECT_TRUE(at::equal(evaluated, model->Logits(ids, mask).detach()));
}

TEST(Bert, PaddingChangesNothing) {
  const auto model = TinyModel();
  model->module().eval();
  const Tensor ids = Ids(2, 5);
  const Tensor padded = at::cat({ids, at::full({2, 3}, 9, at::kLong)}, 1);
  const Tensor mask = at::cat({at::ones({2, 5}, at::kLong), at::zeros({2, 3}, at::kLong)}, 1);
  const Tensor expected = model->Logits(ids, {}).detach();  // no mask: all tokens are seen
  EXPECT_TRUE(at::allclose(model->Logits(padded, mask), expected, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(model->Logits(padded, mask.to(at::kBool)), expected, 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(model->Logits(padded, {}), expected, 1e-5, 1e-6));
}

TEST(Bert, ARecordThatIsAllPaddingStaysFiniteInEveryDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto model = TinyModel();
    model->module().to(dtype);
    for (const bool training : {false, true}) {
      model->module().train(training);
      const Tensor logits = model->Logits(Ids(2, 4), at::zeros({2, 4}, at::kLong));
      EXPECT_EQ(logits.scalar_type(), dtype);
      EXPECT_TRUE(at::isfinite(logits).all().item<bool>());
    }
  }
}

TEST(Bert, LossIsTheSumOverLabelledRecords) {
  const auto model = TinyModel();
  model->module().eval();
  const Tensor ids = Ids(3, 4), labels = at::tensor({1, -100, 0}, at::kLong);
  const auto [loss, logits] = model->Loss(ids, {}, labels);
  const Tensor log_p = at::log_softmax(logits, -1);
  const float expected = -(log_p[0][1] + log_p[2][0]).item<float>();
  EXPECT_NEAR(loss.item<float>(), expected, 1e-5);
  const float none = model->Loss(ids, {}, at::full({3}, -100, at::kLong)).loss.item<float>();
  EXPECT_EQ(none, 0.0F);
}

TEST(Bert, ABatchOfNoRecordsHasZeroLossAndZeroGradients) {
  const auto model = TinyModel();
  for (const bool training : {false, true}) {
    model->module().train(training);
    const Tensor ids = at::empty({0, 5}, at::kLong);
    const auto [loss, logits] = model->Loss(ids, at::empty({0, 5}, at::kLong), ids.select(1, 0));
    EXPECT_EQ(logits.sizes(), at::IntArrayRef({0, 2}));
    EXPECT_EQ(loss.item<float>(), 0.0F);
    loss.backward();
    for (const auto& parameter : model->module().named_parameters()) {
      const Tensor gradient = parameter.value().grad();
      ASSERT_TRUE(gradient.defined()) << parameter.key();
      EXPECT_EQ(gradient.abs().sum().item<float>(), 0.0F) << parameter.key();
    }
  }
}

TEST(Bert, ThePaddingTokensEmbeddingGetsNoGradient) {
  const auto model = TinyModel({{"pad_token_id", 3}});
  Tensor ids = at::full({2, 4}, 3, at::kLong);
  ids.select(1, 0).fill_(8);
  model->Loss(ids, {}, at::ones({2}, at::kLong)).loss.backward();
  const Tensor gradient = Gradient(*model, "bert.embeddings.word_embeddings.weight");
  EXPECT_EQ(gradient[3].abs().sum().item<float>(), 0.0F);
  EXPECT_GT(gradient[8].abs().sum().item<float>(), 0.0F);
}

TEST(Bert, LogitsComeFromTheFirstHiddenState) {
  const auto model = TinyModel();
  model->module().eval();
  const Tensor ids = Ids(3, 7);
  const auto parameters = model->module().named_parameters();
  const Tensor first = Bert(*model).HiddenStates(ids, {}).select(1, 0);
  const Tensor pooled = at::tanh(at::linear(first, parameters["bert.pooler.dense.weight"],
                                            parameters["bert.pooler.dense.bias"]));
  const Tensor logits =
      at::linear(pooled, parameters["classifier.weight"], parameters["classifier.bias"]);
  EXPECT_TRUE(at::allclose(model->Logits(ids, {}), logits, 1e-5, 1e-6));
}

TEST(Bert, RefusesInputsThatDoNotFit) {
  const auto model = TinyModel();
  EXPECT_THROW(model->Logits(Ids(1, 13), {}), ConfigError);  // 12 positions
  EXPECT_THROW(model->Logits(Ids(2, 0), {}), ConfigError);
  EXPECT_THROW(model->Logits(Ids(2, 4), at::ones({2, 5})), ConfigError);
  EXPECT_THROW(model->Logits(Ids(2, 4)[0], {}), ConfigError);
  try {
    model->Logits(Ids(1, 13), {});
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("13 tokens, the model has 12 positions"),
              std::string::npos)
        << error.what();
  }
}

TEST(Bert, TrainsOnMetaWithGradientsOfTheRightShape) {
  torchx::InstallMetaKernels();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool training : {false, true}) {
      const auto model = MakeFromText(TinyConfig().dump(), 0, at::kMeta);
      model->module().to(dtype);
      model->module().train(training);
      const auto options = at::TensorOptions(at::kMeta).dtype(at::kLong);
      const Tensor ids = at::empty({3, 6}, options);
      const auto [loss, logits] = model->Loss(ids, ids, at::empty({3}, options));
      EXPECT_EQ(logits.sizes(), at::IntArrayRef({3, 2}));
      EXPECT_EQ(logits.scalar_type(), dtype);
      loss.backward();
      for (const auto& parameter : model->module().named_parameters()) {
        const Tensor gradient = parameter.value().grad();
        ASSERT_TRUE(gradient.defined()) << parameter.key();
        EXPECT_TRUE(gradient.is_meta());
        EXPECT_EQ(gradient.sizes(), parameter.value().sizes()) << parameter.key();
        EXPECT_EQ(gradient.scalar_type(), dtype) << parameter.key();
      }
    }
  }
}

}  // namespace
}  // namespace ullage::models
