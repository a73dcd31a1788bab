// What decoders do beyond agreeing with transformers: documents, padding, labels, Meta.
#include "models/llama.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "models/linear_cross_entropy.h"
#include "tiny_llama.h"
#include "torchx/meta_kernels.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using at::Tensor;
using Gradients = std::map<std::string, Tensor>;

Gradients GradientsOf(Model& model) {
  Gradients gradients;
  for (auto& parameter : model.module().named_parameters()) {
    if (gradients.contains(parameter.key())) continue;
    gradients[parameter.key()] = std::exchange(parameter.value().mutable_grad(), {});
  }
  return gradients;
}

std::vector<nlohmann::json> Families() {
  return {{{"model_type", "llama"}},
          {{"model_type", "mistral"}, {"sliding_window", 3}},
          {{"model_type", "qwen2"}, {"tie_word_embeddings", true}},
          {{"model_type", "qwen3"},
           {"use_sliding_window", true},
           {"sliding_window", 4},
           {"max_window_layers", 1}}};
}

TEST(Llama, PackedDocumentsAreLikeSeparateOnes) {
  for (const auto& family : Families()) {
    const auto model = TinyLlama(family);
    const Batch whole = TinyBatch(2, 15);
    Batch packed = whole;
    packed.labels = whole.labels.clone();
    std::vector<Tensor> positions, documents;
    double separate = 0;
    std::int64_t first = 0;
    for (const std::int64_t length : {4, 1, 10}) {
      Batch alone;
      alone.input_ids = whole.input_ids.slice(1, first, first + length);
      alone.labels = alone.input_ids;
      const Tensor loss = model->Loss(alone).loss;
      loss.backward();
      separate += loss.item<double>();
      positions.push_back(at::arange(length, at::kLong));
      documents.push_back(at::full({length}, first, at::kInt));
      packed.labels.select(1, first).fill_(kIgnoredLabel);
      first += length;
    }
    const Gradients expected = GradientsOf(*model);
    packed.position_ids = at::cat(positions).expand({2, 15});
    packed.document_ids = at::cat(documents).expand({2, 15});
    const Tensor loss = model->Loss(packed).loss;
    loss.backward();
    EXPECT_NEAR(loss.item<double>(), separate, 1e-4 * separate);
    for (const auto& [name, gradient] : GradientsOf(*model)) {
      if (!gradient.defined()) continue;  // the second name of a tied one
      EXPECT_TRUE(at::allclose(gradient, expected.at(name), 1e-3, 1e-5)) << name;
    }
    packed.document_ids = Tensor();
    EXPECT_GT(std::abs(model->Loss(packed).loss.item<double>() - separate), 1e-2);
  }
}

TEST(Llama, PaddingAtTheEndChangesNothing) {
  const auto model = TinyLlama();
  const Batch whole = TinyBatch(2, 6);
  Batch padded;
  padded.input_ids = at::cat({whole.input_ids, at::full({2, 3}, 9, at::kLong)}, 1);
  padded.labels = at::cat({whole.labels, at::full({2, 3}, kIgnoredLabel, at::kLong)}, 1);
  padded.attention_mask = at::cat({at::ones({2, 6}, at::kLong), at::zeros({2, 3}, at::kLong)}, 1);
  EXPECT_TRUE(at::allclose(model->Logits(padded).slice(1, 0, 6), model->Logits(whole), 1e-5, 1e-6));
  EXPECT_NEAR(model->Loss(padded).loss.item<double>(), model->Loss(whole).loss.item<double>(),
              1e-4);
}

TEST(Llama, ATokenDependsOnlyOnThoseItSees) {
  const auto model =
      TinyLlama({{"model_type", "mistral"}, {"sliding_window", 3}, {"num_hidden_layers", 1}});
  Batch batch = TinyBatch(1, 8);
  const Tensor before = model->Logits(batch).detach();
  batch.input_ids = batch.input_ids.clone();
  batch.input_ids[0][2] = 51;
  const Tensor changed = (model->Logits(batch).detach() != before).any(-1)[0];
  for (std::int64_t token = 0; token < 8; ++token) {
    EXPECT_EQ(changed[token].item<bool>(), token >= 2 && token <= 4) << token;
  }
}

TEST(Llama, LossIsTheSumOverTheLabelsThatCountEachForTheTokenBefore) {
  const auto model = TinyLlama();
  Batch batch = TinyBatch(2, 5);
  batch.labels.fill_(kIgnoredLabel);
  batch.labels[0][0] = 7;  // no token stands before it
  batch.labels[0][3] = 11;
  batch.labels[1][1] = 2;
  const Tensor log_p = at::log_softmax(model->Logits(batch), -1);
  const double expected = -(log_p[0][2][11] + log_p[1][0][2]).item<double>();
  EXPECT_NEAR(model->Loss(batch).loss.item<double>(), expected, 1e-5);
  batch.labels = batch.labels.to(at::kInt);
  EXPECT_NEAR(model->Loss(batch).loss.item<double>(), expected, 1e-5);
  batch.labels.fill_(kIgnoredLabel);
  EXPECT_EQ(model->Loss(batch).loss.item<double>(), 0.0);
}

TEST(Llama, ABatchOfNoRecordsHasZeroLossAndZeroGradients) {
  const auto model = TinyLlama();
  const Tensor loss = model->Loss(TinyBatch(0, 5)).loss;
  EXPECT_EQ(loss.item<float>(), 0.0F);
  loss.backward();
  for (const auto& [name, gradient] : GradientsOf(*model)) {
    ASSERT_TRUE(gradient.defined()) << name;
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0.0F) << name;
  }
}

TEST(Llama, ATiedHeadIsTheEmbeddingAndGetsBothGradients) {
  const auto model = TinyLlama({{"tie_word_embeddings", true}});
  const auto parameters = model->module().named_parameters();
  EXPECT_TRUE(parameters["lm_head.weight"].is_same(parameters["model.embed_tokens.weight"]));
  Batch batch = TinyBatch(1, 4);
  batch.input_ids.fill_(3);
  model->Loss(batch).loss.backward();
  const Tensor gradient = parameters["model.embed_tokens.weight"].grad();
  EXPECT_GT(gradient[52].abs().sum().item<float>(), 0.0F);  // of the head alone
}

TEST(Llama, ThePaddingTokensEmbeddingGetsNoGradient) {
  const auto model = TinyLlama({{"pad_token_id", -50}});  // 53 words: token 3
  Batch batch = TinyBatch(1, 4);
  batch.input_ids.fill_(3);
  batch.input_ids[0][1] = 8;
  model->Loss(batch).loss.backward();
  const Tensor gradient = GradientsOf(*model).at("model.embed_tokens.weight");
  EXPECT_EQ(gradient[3].abs().sum().item<float>(), 0.0F);
  EXPECT_GT(gradient[8].abs().sum().item<float>(), 0.0F);
}

TEST(Llama, AttentionDropoutFollowsTheGeneratorInTrainingOnly) {
  const auto model = TinyLlama({{"attention_dropout", 0.5}});
  const auto loss = [&] {
    at::manual_seed(3);
    return model->Loss(TinyBatch(2, 9)).loss.item<double>();
  };
  const double trained = loss();
  EXPECT_EQ(loss(), trained);
  EXPECT_NE(model->Loss(TinyBatch(2, 9)).loss.item<double>(), trained);
  model->module().eval();
  EXPECT_NE(loss(), trained);
}

TEST(Llama, KeepsItsRotaryTableInFloat32AndOnTheCpu) {
  const auto model = MakeFromText(TinyLlamaConfig().dump(), 0, at::kMeta);
  model->module().to(at::kBFloat16);
  const auto buffers = model->module().named_buffers();
  ASSERT_EQ(buffers.size(), 1u);
  EXPECT_EQ(buffers[0].key(), "model.rotary_emb.inv_freq");
  EXPECT_EQ(buffers[0].value().scalar_type(), at::kFloat);
  EXPECT_TRUE(buffers[0].value().is_cpu());
}

TEST(Llama, RefusesInputsThatDoNotFit) {
  const auto model = TinyLlama();
  EXPECT_THROW(model->Logits(TinyBatch(1, 33)), ConfigError);  // 32 positions
  EXPECT_THROW(model->Logits(TinyBatch(2, 0)), ConfigError);
  Batch batch = TinyBatch(2, 4);
  batch.labels = Tensor();
  EXPECT_THROW(model->Loss(batch), ConfigError);
  batch.labels = batch.input_ids.select(1, 0);
  EXPECT_THROW(model->Loss(batch), ConfigError);
  batch = TinyBatch(1, 4);
  batch.attention_mask = at::tensor({0, 1, 1, 1}, at::kLong).view({1, 4});
  try {
    model->Loss(batch);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("a token after padding"), std::string::npos);
  }
}

TEST(Llama, TrainsOnMetaWithGradientsOfTheRightShape) {
  torchx::InstallMetaKernels();
  for (nlohmann::json family : Families()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool recompute : {false, true}) {
        const auto model = MakeFromText(TinyLlamaConfig(family).dump(), 0, at::kMeta);
        model->module().to(dtype);
        model->set_recompute(recompute);
        const auto options = at::TensorOptions(at::kMeta).dtype(at::kLong);
        const Tensor ids = at::empty({3, 6}, options);
        for (const bool packed : {false, true}) {
          const Tensor loss =
              model->Loss({ids, {}, ids, packed ? ids : Tensor(), packed ? ids : Tensor()}).loss;
          EXPECT_EQ(loss.scalar_type(), at::kFloat);
          loss.backward();
        }
        for (const auto& parameter : model->module().named_parameters()) {
          const Tensor gradient = parameter.value().grad();
          ASSERT_TRUE(gradient.defined()) << parameter.key();
          EXPECT_EQ(gradient.sizes(), parameter.value().sizes()) << parameter.key();
          EXPECT_EQ(gradient.scalar_type(), dtype) << parameter.key();
        }
      }
    }
  }
}

}  // namespace
}  // namespace ullage::models
