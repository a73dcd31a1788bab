// Hidden states, logits, loss and gradients equal those of transformers.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "models/bert.h"
#include "models/model.h"

namespace ullage::models {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using Tensors = std::map<std::string, Tensor>;

Tensors ReadSafetensors(const fs::path& path) {
  std::ostringstream buffer;
  buffer << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = buffer.str();
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  Tensors tensors;
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::map<std::string, at::ScalarType> dtypes = {
        {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"I64", at::kLong}};
    Tensor tensor = at::empty(entry["shape"].get<std::vector<std::int64_t>>(),
                              dtypes.at(entry["dtype"].get<std::string>()));
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header_bytes + begin, tensor.nbytes());
    tensors[name] = tensor;
  }
  return tensors;
}

// Copies the file's tensors into the model under the names that the model accepts. Every parameter
// must be there; what is left over must be known to be of no use.
void Load(Model& model, const Tensors& file) {
  std::set<std::string> left;
  for (const auto& [name, tensor] : file) left.insert(name);
  for (auto& parameter : model.module().named_parameters()) {
    bool found = false;
    for (const std::string& name : model.FileNames(parameter.key())) {
      if (found || !file.contains(name)) continue;
      found = true;
      left.erase(name);
      ASSERT_EQ(file.at(name).sizes(), parameter.value().sizes()) << name;
      parameter.value().detach().copy_(file.at(name));
    }
    ASSERT_TRUE(found) << parameter.key();
  }
  for (const std::string& name : left) {
    bool unneeded = false;
    for (const std::string& pattern : model.unneeded_tensor_patterns()) {
      unneeded = unneeded || std::regex_search(name, std::regex(pattern));
    }
    EXPECT_TRUE(unneeded) << name;
  }
}

double LargestDifference(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

struct Tolerance {
  double values = 1e-5;
  double gradients = 1e-4;
};

void ExpectLikeTransformers(const std::string& name, at::ScalarType dtype, Tolerance tolerance) {
  const fs::path folder = fs::path(ULLAGE_MODELS_REFERENCE) / name;
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
  std::ostringstream reference_names;
  reference_names << std::ifstream(folder / "parameters.txt").rdbuf();
  EXPECT_EQ(names, reference_names.str());
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
