// Hidden states, logits, loss and gradients equal those of transformers.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <filesystem>
#include <string>

#include "models/bert.h"
#include "models/model.h"
#include "reference_files.h"

namespace ullage::models {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

struct Tolerance {
  double values = 1e-5;
  double gradients = 1e-4;
};

void ExpectLikeTransformers(const std::string& name, at::ScalarType dtype, Tolerance tolerance) {
  const fs::path folder = fs::path(ULLAGE_MODELS_REFERENCE) / "bert" / name;
  ASSERT_TRUE(fs::exists(folder)) << "run through ctest, which writes " << folder;
  const auto model = MakeModel((folder / "config.json").string(), 0, at::kCPU);
  model->module().to(dtype);
  Load(*model, ReadSafetensors(folder / "model.safetensors"));
  model->module().eval();

  Tensors expected = ReadSafetensors(folder / "expected.safetensors");
  const Tensor ids = expected["input_ids"], mask = expected["attention_mask"];
  auto& bert = dynamic_cast<BertForSequenceClassification&>(model->module());
  const Tensor hidden = bert.HiddenStates(ids, mask).detach();
  EXPECT_EQ(hidden.scalar_type(), dtype);
  EXPECT_LE(LargestDifference(hidden, expected["hidden_states"]), tolerance.values);

  const auto [loss, logits] = model->Loss(ids, mask, expected["labels"]);
  EXPECT_LE(LargestDifference(logits.detach(), expected["logits"]), tolerance.values);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_LE(LargestDifference(loss.detach().reshape({1}), expected["loss"]), tolerance.values * 10);

  loss.backward();
  std::string names;
  for (const auto& parameter : model->module().named_parameters()) {
    names += parameter.key() + "\n";
    const Tensor gradient = parameter.value().grad();
    ASSERT_TRUE(gradient.defined()) << parameter.key();
    EXPECT_LE(LargestDifference(gradient, expected["grad." + parameter.key()]), tolerance.gradients)
        << parameter.key();
  }
  EXPECT_EQ(names, ReadText(folder / "parameters.txt"));
}

class LikeTransformers : public testing::TestWithParam<const char*> {};

TEST_P(LikeTransformers, InFloat32) {
  ExpectLikeTransformers(GetParam(), at::kFloat, {});
}

INSTANTIATE_TEST_SUITE_P(Bert, LikeTransformers,
                         testing::Values("gelu", "unpadded", "relu", "gelu_new",
                                         "one_record_one_token", "classifier_dropout", "old_names"),
                         [](const auto& test) { return test.param; });

TEST(Bert, IsCloseToTransformersInBFloat16) {
  ExpectLikeTransformers("bfloat16", at::kBFloat16, {.values = 0.06, .gradients = 0.3});
}

#ifdef ULLAGE_HAVE_MINILM
TEST(Bert, MiniLmFromABareEncodersFileIsLikeTransformers) {
  ExpectLikeTransformers("minilm", at::kFloat, {});
}
#endif

}  // namespace
}  // namespace ullage::models
