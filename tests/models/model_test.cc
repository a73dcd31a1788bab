// The Model interface: building, names in files, initial values, the exported config.
#include "models/model.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "tiny_model.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

using at::Tensor;
using Names = std::vector<std::string>;

TEST(Model, ReportsItsLimits) {
  const auto model = MakeFromText(TinyConfig().dump(), 5, at::kMeta);
  EXPECT_EQ(model->family(), "bert");
  EXPECT_EQ(model->task(), Task::kClassification);
  EXPECT_EQ(model->vocab_size(), 50);
  EXPECT_EQ(model->max_positions(), 12);
  EXPECT_EQ(model->num_labels(), 5);
  for (const auto& parameter : model->module().named_parameters()) {
    EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
    EXPECT_TRUE(parameter.value().requires_grad()) << parameter.key();
  }
}

TEST(Model, OtherFamiliesAreNotOffered) {
  try {
    MakeFromText(R"({"model_type": "mamba"})");
    FAIL();
  } catch (const UnsupportedError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("\"mamba\" is not offered"), std::string::npos) << text;
    EXPECT_NE(text.find("hint: model_type \"bert\", \"llama\", \"mistral\""), std::string::npos)
        << text;
  }
}

TEST(Model, ADamagedConfigIsRefusedWithItsPlace) {
  EXPECT_THROW(MakeModel("/no/such/config.json", 0, at::kMeta), IoError);
  EXPECT_THROW(MakeFromText(""), IoError);
  EXPECT_THROW(MakeFromText("[1, 2]"), ConfigError);
  EXPECT_THROW(MakeFromText("{}"), ConfigError);
  EXPECT_THROW(MakeFromText(std::string(100000, '[')), ConfigError);
  EXPECT_THROW(MakeFromText(R"({"model_type": 3})"), ConfigError);
  EXPECT_THROW(MakeFromText("{\"model_type\": \"bert\", \"\xff\": 1}"), ConfigError);
  try {
    MakeFromText(R"({"model_type": "bert",, })");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("byte 23"), std::string::npos) << error.what();
  }
}

TEST(Model, FindsParametersUnderTheirOtherNames) {
  const auto model = MakeFromText(TinyConfig().dump(), 0, at::kMeta);
  EXPECT_EQ(model->FileNames("bert.embeddings.LayerNorm.weight"),
            (Names{"bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma",
                   "embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"}));
  EXPECT_EQ(
      model->FileNames("bert.encoder.layer.0.output.LayerNorm.bias"),
      (Names{"bert.encoder.layer.0.output.LayerNorm.bias",
             "bert.encoder.layer.0.output.LayerNorm.beta", "encoder.layer.0.output.LayerNorm.bias",
             "encoder.layer.0.output.LayerNorm.beta"}));
  EXPECT_EQ(model->FileNames("bert.pooler.dense.bias"),
            (Names{"bert.pooler.dense.bias", "pooler.dense.bias"}));
  EXPECT_EQ(model->FileNames("classifier.weight"), Names{"classifier.weight"});
}

TEST(Model, InitialValuesAreNormalWithUnitNormsAndZeroBiases) {
  const auto model = TinyModel({{"vocab_size", 4000}});
  const auto parameters = model->module().named_parameters();
  const Tensor words = parameters["bert.embeddings.word_embeddings.weight"];
  EXPECT_NEAR(words.mean().item<double>(), 0.0, 0.01);
  EXPECT_NEAR(words.std().item<double>(), 0.5, 0.01);   // initializer_range
  EXPECT_EQ(words[0].abs().sum().item<float>(), 0.0F);  // the padding token
  EXPECT_TRUE((parameters["bert.embeddings.LayerNorm.weight"] == 1).all().item<bool>());
  EXPECT_TRUE((parameters["bert.embeddings.LayerNorm.bias"] == 0).all().item<bool>());
  EXPECT_TRUE((parameters["classifier.bias"] == 0).all().item<bool>());
}

TEST(Model, AnInitialValueDependsOnSeedAndNameAlone) {
  const auto model = TinyModel();
  const auto value = [&](const char* name, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
    Tensor out = at::empty({16, 16}, dtype);
    model->InitialValue(name, seed, out);
    return out;
  };
  const char* query = "bert.encoder.layer.0.attention.self.query.weight";
  const Tensor first = value(query, 7);
  at::randn({10});  // the default generator has no say
  EXPECT_TRUE(at::equal(first, value(query, 7)));
  EXPECT_FALSE(at::equal(first, value(query, 8)));
  EXPECT_FALSE(at::equal(first, value("bert.encoder.layer.1.attention.self.query.weight", 7)));
  EXPECT_TRUE(at::equal(first.to(at::kBFloat16), value(query, 7, at::kBFloat16)));
}

TEST(Model, ExportsItsConfigWithTheLabelsItHas) {
  nlohmann::json config = TinyConfig({{"architectures", {"BertModel"}},
                                      {"torch_dtype", "float16"},
                                      {"_name_or_path", "somewhere"},
                                      {"transformers_version", "4.8.2"}});
  const auto model = MakeFromText(config.dump(), 3, at::kMeta);
  const auto exported = nlohmann::json::parse(model->ExportConfig("float32"));
  config.erase("torch_dtype");
  config.erase("_name_or_path");
  config.update({{"architectures", {"BertForSequenceClassification"}},
                 {"problem_type", "single_label_classification"},
                 {"dtype", "float32"},
                 {"num_labels", 3},
                 {"id2label", {{"0", "LABEL_0"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}}},
                 {"label2id", {{"LABEL_0", 0}, {"LABEL_1", 1}, {"LABEL_2", 2}}}});
  EXPECT_EQ(exported, config);
}

TEST(Model, TakesAnExportedConfigBack) {
  const nlohmann::json names = {{"id2label", {{"0", "bad"}, {"1", "good"}}}};
  const auto model = MakeFromText(TinyConfig(names).dump(), 0, at::kMeta);
  const auto again = MakeFromText(model->ExportConfig("float32"), 0, at::kMeta);
  EXPECT_EQ(again->labels(), (Names{"bad", "good"}));
}

}  // namespace
}  // namespace ullage::models
