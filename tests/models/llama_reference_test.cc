// Logits, loss and gradients of Llama, Mistral, Qwen2 and Qwen3 equal those of transformers.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <filesystem>
#include <set>
#include <string>

#include "models/model.h"
#include "models/rotary.h"
#include "reference_files.h"

namespace ullage::models {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

struct Tolerance {
  double values = 1e-4;
  double gradients = 1e-4;  // of the largest element of each gradient
};

Batch BatchOf(Tensors& file) {
  return {file["input_ids"], {}, file["labels"], file["position_ids"], file["document_ids"]};
}

void ExpectLikeTransformers(const std::string& name, at::ScalarType dtype, Tolerance tolerance) {
  const fs::path folder = fs::path(ULLAGE_MODELS_REFERENCE) / "llama" / name;
  ASSERT_TRUE(fs::exists(folder)) << "run through ctest, which writes " << folder;
  const auto model = MakeModel((folder / "config.json").string(), 0, at::kCPU);
  model->module().to(dtype);
  Load(*model, ReadSafetensors(folder / "model.safetensors"));

  Tensors expected = ReadSafetensors(folder / "expected.safetensors");
  const Batch batch = BatchOf(expected);
  const Tensor logits = model->Logits(batch).detach();
  EXPECT_EQ(logits.scalar_type(), dtype);
  EXPECT_LE(LargestDifference(logits, expected["logits"]), tolerance.values);
  const Tensor loss = model->Loss(batch).loss;
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(loss.dim(), 0);
  const double all = expected["loss"].item<double>();
  EXPECT_NEAR(loss.item<double>(), all, tolerance.values * std::max(1.0, all));

  loss.backward();
  std::string names;
  std::set<const void*> seen;
  for (const auto& parameter : model->module().named_parameters()) {
    if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;  // tied
    names += parameter.key() + "\n";
    const Tensor gradient = parameter.value().grad(), wanted = expected["grad." + parameter.key()];
    ASSERT_TRUE(gradient.defined()) << parameter.key();
    EXPECT_LE(LargestDifference(gradient, wanted),
              tolerance.gradients * wanted.abs().max().item<double>() + 1e-9)
        << parameter.key();
  }
  EXPECT_EQ(names, ReadText(folder / "parameters.txt"));
}

class LlamaLikeTransformers : public testing::TestWithParam<const char*> {};

TEST_P(LlamaLikeTransformers, InFloat32) {
  ExpectLikeTransformers(GetParam(), at::kFloat, {});
}

INSTANTIATE_TEST_SUITE_P(Llama, LlamaLikeTransformers,
                         testing::Values("llama", "llama_gqa_biases_tied", "llama_rope_llama3",
                                         "llama_rope_linear", "llama_head_dim", "llama_packed",
                                         "mistral_window", "mistral_no_window", "qwen2",
                                         "qwen2_windows", "qwen3", "qwen3_biases_packed"),
                         [](const auto& test) { return test.param; });

TEST(Llama, IsCloseToTransformersInBFloat16) {
  ExpectLikeTransformers("bfloat16", at::kBFloat16, {.values = 0.06, .gradients = 0.05});
}

// The tables of a 16-bit model are computed in fp32 and rounded last.
TEST(Rotary, FrequenciesAndTablesHaveTheBitsOfTransformers) {
  const fs::path folder = fs::path(ULLAGE_MODELS_REFERENCE) / "llama" / "rotary";
  Tensors tables = ReadSafetensors(folder / "tables.safetensors");
  const Tensor positions = at::tensor({0, 1, 257, 4097, 131071}, at::kLong).unsqueeze(0);
  for (const std::string name : {"default", "linear", "llama3"}) {
    const auto json = nlohmann::json::parse(ReadText(folder / (name + ".json")));
    const RotaryConfig config = ReadRotaryConfig(json, "config.json", 128, 131072);
    EXPECT_TRUE(at::equal(InverseFrequencies(config), tables[name])) << name;
    RotaryEmbedding rotary(config);
    rotary.to(at::kBFloat16);
    const auto [cos, sin] = rotary(positions, 5, at::kCPU, at::kBFloat16);
    EXPECT_TRUE(at::equal(cos.squeeze(2), tables[name + ".cos"])) << name;
    EXPECT_TRUE(at::equal(sin.squeeze(2), tables[name + ".sin"])) << name;
  }
}

}  // namespace
}  // namespace ullage::models
