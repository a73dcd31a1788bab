// Training goes on from the checkpoints that DeepSpeed wrote (tests/files), on other ranks and at
// other stages: weights, moments, steps.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/comm.h"
#include "engine/checkpoint_model.h"
#include "engine/support.h"
#include "files/safetensors.h"
#include "files/scratch.h"

namespace ullage::testing {
namespace {

using testsupport::MessageOf;
using testsupport::Scratch;

// The model of make_deepspeed_checkpoints.py.
struct Net {
  at::Tensor scale = torch::zeros({1}), embedding = torch::zeros({7, 5}),
             first_weight = torch::zeros({3, 5}), first_bias = torch::zeros({3}),
             frozen = torch::zeros({5, 3}), norm_weight = torch::zeros({5}),
             norm_bias = torch::zeros({5}), table = torch::zeros({4});

  ParameterList List() const {
    ParameterList list;
    const auto add = [&](const char* name, const at::Tensor& tensor) {
      list.Add(name, tensor.set_requires_grad(true));
    };
    add("scale", scale);
    add("embedding.weight", embedding);
    add("first.weight", first_weight);
    add("first.bias", first_bias);
    list.Add("frozen.weight", frozen);
    add("norm.weight", norm_weight);
    add("norm.bias", norm_bias);
    add("head.weight", embedding);  // tied
    list.AddBuffer("table", table);
    return list;
  }
};

std::vector<float> Floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Settings NetSettings(const Case& c, bool universal = false) {
  return SettingsFor(c, fmt::format(R"({{"optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
                                         "checkpoint": {{"load_universal": {}}}}})",
                                    universal));
}

std::shared_ptr<Ranks> OneRank() {
  return std::make_shared<Ranks>(comm::MakeSingleComm());
}

class FromDeepSpeed : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch();
    const std::string command = "tar -xzf '" ULLAGE_TEST_DATA
                                "/deepspeed_checkpoints.tar.gz' -C '" +
                                scratch_->path() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  static void TearDownTestSuite() { delete scratch_; }

  static std::string At(const std::string& name) { return *scratch_ / name; }

  // Loads, and saves what was loaded.
  static Contents Loaded(const Case& c, const std::string& from) {
    const Scratch to;
    std::string path;
    OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
      const Net net;
      EngineOptions options;
      options.seed = 77;
      Engine engine(net.List(), NetSettings(c), ranks, options);
      const CheckpointInfo info = engine.LoadCheckpoint(from);
      EXPECT_EQ(info.applied_steps, 3);
      EXPECT_EQ(engine.applied_steps(), 3);
      EXPECT_EQ(net.table[3].item<float>(), 3);
      const std::string saved = engine.SaveCheckpoint(to.path());
      if (ranks->rank() == 0) path = saved;
    });
    return ContentsOf(path);
  }

 private:
  static inline Scratch* scratch_ = nullptr;
};

TEST_F(FromDeepSpeed, EveryFormBringsWeightsMomentsAndStepsToAnyRanksAndStage) {
  const Case cases[] = {{0, 1}, {3, 2, 1'000'000, 256}, {2, 4}, {1, 3, 1'000'000, 256, 0.5}};
  files::PosixFileSystem fs;
  for (const auto& [name, expected_of] :
       {std::pair("stage1", "stage1"),
        {"stage1_elastic", "stage1_elastic"},
        {"stage1_bf16_fp32_accumulation", "stage1_bf16_fp32_accumulation"},
        {"stage2_three_ranks", "stage2_three_ranks"},
        {"stage2_bf16", "stage2_bf16"},
        {"stage2_round_robin", "stage2"},
        {"stage3", "stage3"},
        {"stage3_three_ranks", "stage3_three_ranks"},
        {"stage3_bf16", "stage3_bf16"},
        {"stage1/universal", "stage1"},
        {"stage3/universal", "stage3"},
        {"stage0_one_group", "stage0_one_group"}}) {
    const auto expected =
        files::SafetensorsFile::Open(fs, At(expected_of) + "/expected.safetensors");
    for (const Case& c : cases) {
      SCOPED_TRACE(Describe(c) + " from " + name);
      const Contents found = Loaded(c, At(name));
      for (const files::TensorInfo& tensor : expected.tensors()) {
        std::vector<float> wanted(static_cast<std::size_t>(tensor.numel));
        expected.Read(tensor, 0, tensor.numel, wanted.data());
        const std::size_t slash = tensor.name.find('/');
        std::string part = tensor.name.substr(0, slash);
        const std::string parameter = tensor.name.substr(slash + 1);
        if (part == "param") part = parameter == "frozen.weight" ? "weight" : "master";
        EXPECT_EQ(Floats(found.at(part + "." + parameter)), wanted) << tensor.name;
      }
    }
  }
}

// One element, whose gradient is 2: the fourth step of Adam from the moments that were read.
TEST_F(FromDeepSpeed, TheNextStepIsAdamsFourth) {
  files::PosixFileSystem fs;
  const auto expected = files::SafetensorsFile::Open(fs, At("stage3/expected.safetensors"));
  const auto read = [&](const char* name) {
    float value = 0;
    expected.Read(expected.Get(name), 0, 1, &value);
    return static_cast<double>(value);
  };
  const Net net;
  Engine engine(net.List(), NetSettings({3, 1}), OneRank());
  engine.LoadCheckpoint(At("stage3"));
  engine.Backward(engine.Forward([&] { return net.scale.sum() * 2; }));
  engine.Step();
  const double m = 0.9 * read("exp_avg/scale") + 0.1 * 2;
  const double v = 0.999 * read("exp_avg_sq/scale") + 0.001 * 4;
  const double before = read("param/scale");
  const double after = before - 0.01 * (m / (1 - std::pow(0.9, 4))) /
                                    (std::sqrt(v / (1 - std::pow(0.999, 4))) + 1e-8);
  const auto gathered = engine.Gather();
  // Settings without weight_decay have DeepSpeed's default, 0.
  EXPECT_NEAR(net.scale.item<double>(), after, 1e-6);
  EXPECT_NE(after, before);
}

TEST_F(FromDeepSpeed, WithoutMomentsOnlyTheWeightsAreTaken) {
  const Net net;
  Engine engine(net.List(), NetSettings({1, 1}), OneRank());
  const std::string message = MessageOf<ConfigError>([&] { engine.LoadCheckpoint(At("stage0")); });
  EXPECT_NE(message.find("optimizer: adam with [exp_avg, exp_avg_sq] here"), std::string::npos)
      << message;
  EXPECT_NE(message.find("one group has all parameters"), std::string::npos) << message;
  LoadOptions options;
  options.weights_only = true;
  engine.LoadCheckpoint(At("stage0"), options);
  EXPECT_EQ(engine.applied_steps(), 0);
  const auto gathered = engine.Gather();
  EXPECT_NE(net.scale.item<float>(), 0);
}

TEST_F(FromDeepSpeed, LoadUniversalAsksForThatForm) {
  const Net net;
  Engine engine(net.List(), NetSettings({1, 1}, /*universal=*/true), OneRank());
  const std::string message = MessageOf<ConfigError>([&] { engine.LoadCheckpoint(At("stage2")); });
  EXPECT_NE(message.find("checkpoint.load_universal is true"), std::string::npos) << message;
  EXPECT_NE(message.find("set it to false"), std::string::npos) << message;
  // A folder as the converter leaves it: both forms, and a name for the newest of each.
  const Scratch scratch;
  const auto copy = [&](const std::string& from, const std::string& to) {
    std::filesystem::copy(from, scratch / to, std::filesystem::copy_options::recursive);
  };
  copy(At("stage1/global_step3"), "global_step3");
  copy(At("stage1/universal"), "universal");
  scratch.Write("latest", "global_step3");
  scratch.Write("latest_universal", "universal");
  EXPECT_EQ(engine.LoadCheckpoint(scratch.path()).path, scratch / "universal");
  Engine other(Net().List(), NetSettings({1, 1}), OneRank());
  EXPECT_EQ(other.LoadCheckpoint(scratch.path()).path, scratch / "global_step3");
  EXPECT_EQ(engine.ParametersSha256(), other.ParametersSha256());
}

TEST_F(FromDeepSpeed, AnotherModelIsRefusedByName) {
  const Net net;
  ParameterList list;
  list.Add("scale", net.scale.set_requires_grad(true));
  list.Add("first.weight", net.first_bias.set_requires_grad(true));
  Engine engine(std::move(list), NetSettings({1, 1}), OneRank());
  const std::string message = MessageOf<ConfigError>([&] { engine.LoadCheckpoint(At("stage2")); });
  EXPECT_NE(message.find("first.weight: the model has shape [3], the checkpoint [3, 5]"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("norm.bias: is not in the model"), std::string::npos) << message;
}

}  // namespace
}  // namespace ullage::testing
