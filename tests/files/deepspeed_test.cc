// Checkpoints that DeepSpeed 0.19.8 wrote (make_deepspeed_checkpoints.py), compared with the values
// that its own functions gave for them.
#include "files/deepspeed_checkpoint.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "files/weight_source.h"
#include "scratch.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::PickleText;
using testsupport::Scratch;
using testsupport::TorchZip;

const std::vector<std::string> kTrained = {"scale",      "embedding.weight", "first.weight",
                                           "first.bias", "norm.weight",      "norm.bias"};

class DeepSpeedTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch();
    const std::string command = "tar -xzf '" ULLAGE_TEST_DATA
                                "/deepspeed_checkpoints.tar.gz' -C '" +
                                scratch_->path() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  static void TearDownTestSuite() { delete scratch_; }

  static const Scratch& scratch() { return *scratch_; }

  // As float, from whichever type it is in.
  static std::vector<float> Values(const DeepSpeedCheckpoint& checkpoint, DeepSpeedState state,
                                   const std::string& name, std::int64_t first,
                                   std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    if (checkpoint.Type(state, name) == ElementType::kF32) {
      checkpoint.Read(state, name, first, count, values.data());
      return values;
    }
    EXPECT_EQ(checkpoint.Type(state, name), ElementType::kBF16);
    std::vector<std::uint16_t> halves(values.size());
    checkpoint.Read(state, name, first, count, halves.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(halves[i]) << 16;
      std::memcpy(&values[i], &bits, sizeof bits);
    }
    return values;
  }

  // Whole and in every range of elements.
  static void ExpectState(const DeepSpeedCheckpoint& checkpoint, DeepSpeedState state,
                          const std::string& name, const SafetensorsFile& expected,
                          const std::string& key) {
    SCOPED_TRACE(key);
    const TensorInfo& info = expected.Get(key);
    ASSERT_EQ(checkpoint.Get(name).shape, info.shape);
    ASSERT_TRUE(checkpoint.Has(state, name));
    std::vector<float> wanted(static_cast<std::size_t>(info.numel));
    expected.Read(info, 0, info.numel, wanted.data());
    for (std::int64_t first = 0; first < info.numel; ++first) {
      for (std::int64_t count = 1; count <= info.numel - first; ++count) {
        ASSERT_EQ(Values(checkpoint, state, name, first, count),
                  std::vector<float>(wanted.begin() + first, wanted.begin() + first + count))
            << first << " + " << count;
      }
    }
  }

  static void ExpectAsDeepSpeed(const std::string& folder, const std::string& expected_of,
                                bool moments = true, bool unfrozen = false) {
    SCOPED_TRACE(folder);
    PosixFileSystem fs;
    const auto checkpoint = DeepSpeedCheckpoint::Open(fs, scratch() / folder);
    const auto expected =
        SafetensorsFile::Open(fs, scratch() / expected_of + "/expected.safetensors");
    EXPECT_EQ(checkpoint.global_steps(), 3);
    EXPECT_EQ(checkpoint.skipped_steps(), 0);
    for (const std::string& name : kTrained) {
      EXPECT_EQ(checkpoint.Get(name).kind, DeepSpeedCheckpoint::Kind::kTrained);
      ExpectState(checkpoint, DeepSpeedState::kWeight, name, expected, "param/" + name);
      if (!moments) continue;
      ExpectState(checkpoint, DeepSpeedState::kExpAvg, name, expected, "exp_avg/" + name);
      ExpectState(checkpoint, DeepSpeedState::kExpAvgSq, name, expected, "exp_avg_sq/" + name);
    }
    ExpectState(checkpoint, DeepSpeedState::kWeight, "frozen.weight", expected,
                "param/frozen.weight");
    EXPECT_EQ(checkpoint.Has(DeepSpeedState::kExpAvg, "frozen.weight"), unfrozen);
    EXPECT_EQ(checkpoint.Get("head.weight").shared_with, "embedding.weight");
    ExpectState(checkpoint, DeepSpeedState::kWeight, "head.weight", expected,
                "param/embedding.weight");
    EXPECT_EQ(checkpoint.Get("table").kind, DeepSpeedCheckpoint::Kind::kBuffer);
    EXPECT_EQ(Values(checkpoint, DeepSpeedState::kWeight, "table", 0, 4),
              (std::vector<float>{0, 1, 2, 3}));
    EXPECT_EQ(checkpoint.parameters().size(), 9u);
  }

  // The checkpoint `name` in a folder of its own, to be damaged.
  static std::string Copy(const Scratch& to, const std::string& name) {
    std::filesystem::copy(scratch() / name, to / name, std::filesystem::copy_options::recursive);
    return to / name;
  }
  static std::string OpenError(const std::string& folder) {
    PosixFileSystem fs;
    return MessageOf<IoError>([&] { DeepSpeedCheckpoint::Open(fs, folder); });
  }

 private:
  static inline Scratch* scratch_ = nullptr;
};

TEST_F(DeepSpeedTest, Stage1And2AreCutFromTheFlatVectorsOfAllRanks) {
  for (const std::string name :
       {"stage1", "stage1_elastic", "stage1_bf16", "stage1_bf16_fp32_accumulation", "stage2",
        "stage2_three_ranks", "stage2_bf16"}) {
    ExpectAsDeepSpeed(name, name);
  }
  ExpectAsDeepSpeed("stage2_round_robin", "stage2");
}

TEST_F(DeepSpeedTest, Stage3IsPutTogetherFromEveryRanksChunks) {
  for (const std::string name : {"stage3", "stage3_three_ranks", "stage3_bf16"}) {
    ExpectAsDeepSpeed(name, name);
  }
}

TEST_F(DeepSpeedTest, TheUniversalFormHasWholeParameters) {
  ExpectAsDeepSpeed("stage1/universal", "stage1");
  ExpectAsDeepSpeed("stage3/universal", "stage3");
}

TEST_F(DeepSpeedTest, Stage0HasMomentsWhereThereIsOneGroup) {
  ExpectAsDeepSpeed("stage0_one_group", "stage0_one_group");
  ExpectAsDeepSpeed("stage0_bf16_unfrozen", "stage0_bf16_unfrozen", true, /*unfrozen=*/true);
  ExpectAsDeepSpeed("stage0", "stage0", /*moments=*/false);
  PosixFileSystem fs;
  const auto checkpoint = DeepSpeedCheckpoint::Open(fs, scratch() / "stage0");
  EXPECT_FALSE(checkpoint.Has(DeepSpeedState::kExpAvg, "scale"));
  float value = 0;
  EXPECT_NE(MessageOf<IoError>([&] {
              checkpoint.Read(DeepSpeedState::kExpAvg, "scale", 0, 1, &value);
            }).find("does not hold the exp_avg of \"scale\""),
            std::string::npos);
  EXPECT_NE(checkpoint.moments_note().find("one group has all parameters"), std::string::npos);
}

TEST_F(DeepSpeedTest, CountersAndStepsAreRead) {
  PosixFileSystem fs;
  const auto check = [&](const std::string& name, int stage, int ranks) {
    const auto checkpoint = DeepSpeedCheckpoint::Open(fs, scratch() / name);
    EXPECT_EQ(checkpoint.stage(), stage) << name;
    EXPECT_EQ(checkpoint.ranks(), ranks) << name;
    EXPECT_EQ(checkpoint.global_samples(), 6 * ranks) << name;
    EXPECT_EQ(checkpoint.Get("norm.bias").optimizer_step, 3) << name;
    EXPECT_EQ(checkpoint.Get("frozen.weight").optimizer_step, std::nullopt) << name;
    return checkpoint.loss_scale();
  };
  EXPECT_EQ(check("stage1", 1, 2), 1.0);
  EXPECT_EQ(check("stage1_bf16_fp32_accumulation", 1, 2), std::nullopt);
  check("stage2_three_ranks", 2, 3);
  check("stage3", 3, 2);
  EXPECT_FALSE(DeepSpeedCheckpoint::Open(fs, scratch() / "stage3").universal());
  EXPECT_TRUE(DeepSpeedCheckpoint::Open(fs, scratch() / "stage3/universal").universal());
}

TEST_F(DeepSpeedTest, AModelFolderWithACheckpointHasItsMasterValues) {
  PosixFileSystem fs;
  const auto weights = WeightFiles::Open(fs, scratch() / "stage3_bf16");
  EXPECT_EQ(weights.FileOf("scale"), scratch() / "stage3_bf16/global_step3");
  ASSERT_EQ(weights.notes().size(), 1u);
  EXPECT_NE(weights.notes()[0].find("at stage 3 on 2 ranks after 3 steps"), std::string::npos);
  EXPECT_EQ(weights.Get("scale").type, ElementType::kF32);
  EXPECT_EQ(weights.Get("frozen.weight").type, ElementType::kBF16);
  const auto expected = SafetensorsFile::Open(fs, scratch() / "stage3_bf16/expected.safetensors");
  float got[2] = {}, wanted[2] = {};
  weights.Read("head.weight", 17, 2, got);
  expected.Read("param/embedding.weight", 17, 2, wanted);
  EXPECT_EQ(got[0], wanted[0]);
  EXPECT_EQ(got[1], wanted[1]);
}

TEST_F(DeepSpeedTest, OnlyRangesOfTheParameterAreRead) {
  PosixFileSystem fs;
  const auto checkpoint = DeepSpeedCheckpoint::Open(fs, scratch() / "stage2");
  float values[4] = {};
  for (const auto& [first, count] : {std::pair(0, 4), {3, 1}, {-1, 1}, {0, -1}}) {
    EXPECT_THROW(checkpoint.Read(DeepSpeedState::kWeight, "first.bias", first, count, values),
                 IoError);
  }
  EXPECT_THROW(checkpoint.Read(DeepSpeedState::kWeight, "nothing", 0, 0, values), IoError);
}

TEST_F(DeepSpeedTest, AMissingOrForeignFileIsNamed) {
  const std::string second = "/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const struct {
    const char* name;
    void (*damage)(const std::string& folder);
    const char* part;
  } cases[] = {
      {"stage2", [](const std::string& f) { std::filesystem::remove(f + "/latest"); },
       "holds no *_model_states.pt"},
      {"stage2", [](const std::string& f) { std::ofstream(f + "/latest") << "../other"; },
       "names \"../other\", which is no folder"},
      {"stage2",
       [](const std::string& f) {
         std::filesystem::remove(f + "/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt");
       },
       "1 optimizer files, but one of rank 1"},
      {"stage2",
       [](const std::string& f) {
         std::filesystem::remove(f + "/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt");
       },
       "was written by one of 2 ranks, but the folder has files of 1"},
      {"stage2",
       [](const std::string& f) {
         for (const char* rank : {"0", "1"}) {
           std::filesystem::remove(f + "/global_step3/zero_pp_rank_" + rank +
                                   "_mp_rank_00_optim_states.pt");
         }
       },
       "holds no *_optim_states.pt"},
      {"stage2",
       [](const std::string& f) {
         std::filesystem::copy(f + "/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
                               f + "/global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
       },
       "are both of rank 1"},
      {"stage3",
       [](const std::string& f) {
         std::filesystem::remove(f + "/global_step3/zero_pp_rank_1_mp_rank_00_model_states.pt");
       },
       "hold 8 of the 15 elements of the weights of \"frozen.weight\""},
      {"stage3/universal",
       [](const std::string& f) { std::filesystem::remove(f + "/zero/norm.bias/fp32.pt"); },
       "norm.bias/fp32.pt: cannot open"},
      {"stage3/universal",
       [](const std::string& f) { std::filesystem::remove(f + "/zero/optimizer_state.pt"); },
       "optimizer_state.pt: is missing"},
  };
  for (const auto& c : cases) {
    Scratch to;
    std::filesystem::create_directory(to / "stage3");
    const std::string folder = Copy(to, c.name);
    c.damage(folder);
    const std::string message = OpenError(folder);
    EXPECT_NE(message.find(c.part), std::string::npos) << c.part << "\n" << message;
  }
}

TEST_F(DeepSpeedTest, ARanksFileOfAnotherRunIsRefused) {
  Scratch to;
  const std::string folder = Copy(to, "stage2");
  const std::string file = "/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const auto take = [&](const std::string& from) {
    std::filesystem::copy_file(scratch() / from + file, folder + file,
                               std::filesystem::copy_options::overwrite_existing);
  };
  take("stage1");
  EXPECT_NE(OpenError(folder).find("is of stage 1, that of rank 0 of stage 2"), std::string::npos);
  take("stage3");
  EXPECT_NE(OpenError(folder).find("is of stage 3"), std::string::npos);
  take("stage2_three_ranks");
  EXPECT_NE(OpenError(folder).find("was written by one of 3 ranks"), std::string::npos);
}

// The smallest checkpoint of stage 0 with one entry changed.
TEST(DeepSpeed, SplitModelsAreNotOffered) {
  PosixFileSystem fs;
  for (const auto& [file, part] :
       {std::pair("layer_00_expert_0_mp_rank_00_model_states.pt", "layers or experts"),
        {"expp_rank_0_mp_rank_00_optim_states.pt", "experts"},
        {"mp_rank_01_model_states.pt", "tensors"},
        {"zero_pp_rank_0_mp_rank_01_optim_states.pt", "tensors"}}) {
    Scratch scratch;
    scratch.Write(file, "");
    EXPECT_NE(MessageOf<UnsupportedError>([&] {
                DeepSpeedCheckpoint::Open(fs, scratch.path());
              }).find(std::string("split by ") + part),
              std::string::npos);
  }
  Scratch scratch;
  scratch.Write("mp_rank_00_model_states.pt",
                TorchZip(PickleText().Op('}').Text("mp_world_size").Raw("K\2s").End(), {}));
  EXPECT_NE(MessageOf<UnsupportedError>([&] {
              DeepSpeedCheckpoint::Open(fs, scratch.path());
            }).find("split by tensors into 2 parts"),
            std::string::npos);
}

TEST(DeepSpeed, ADynamicLossScaleHasItsCounters) {
  const auto scale_of = [](bool dynamic) {
    PosixFileSystem fs;
    Scratch scratch;
    scratch.Write("mp_rank_00_model_states.pt", TorchZip(PickleText()
                                                             .Raw("}(")
                                                             .Text("module")
                                                             .Op('}')
                                                             .Text("optimizer")
                                                             .Raw("}(")
                                                             .Text("dynamic_loss_scale")
                                                             .Op(dynamic ? '\x88' : '\x89')
                                                             .Text("loss_scaler")
                                                             .Raw("}(")
                                                             .Text("cur_scale")
                                                             .Number(2048)
                                                             .Text("cur_iter")
                                                             .Number(9)
                                                             .Text("last_overflow_iter")
                                                             .Number(4)
                                                             .Text("cur_hysteresis")
                                                             .Number(2)
                                                             .Raw("uuu")
                                                             .End(),
                                                         {}));
    const auto checkpoint = DeepSpeedCheckpoint::Open(fs, scratch.path());
    EXPECT_EQ(checkpoint.loss_scale(), 2048);
    return checkpoint.dynamic_loss_scale();
  };
  const auto scale = scale_of(true);
  ASSERT_TRUE(scale.has_value());
  EXPECT_EQ(scale->scale, 2048);
  EXPECT_EQ(scale->iteration, 9);
  EXPECT_EQ(scale->last_overflow, 4);
  EXPECT_EQ(scale->hysteresis_left, 2);
  EXPECT_FALSE(scale_of(false).has_value());
}

TEST(DeepSpeed, ShapesThatTheFilesDoNotHoldAreRefused) {
  PosixFileSystem fs;
  const auto open = [&](const std::vector<std::int64_t>& shape, std::int64_t partition_count = 1) {
    Scratch scratch;
    scratch.Write("mp_rank_00_model_states.pt", TorchZip(PickleText()
                                                             .Raw("}(")
                                                             .Text("module")
                                                             .Op('}')
                                                             .Text("param_shapes")
                                                             .Raw("]}")
                                                             .Text("w")
                                                             .Tuple(shape)
                                                             .Raw("sau")
                                                             .End(),
                                                         {}));
    scratch.Write("zero_pp_rank_0_mp_rank_00_optim_states.pt",
                  TorchZip(PickleText()
                               .Op('}')
                               .Text("optimizer_state_dict")
                               .Raw("}(")
                               .Text("zero_stage")
                               .Number(2)
                               .Text("partition_count")
                               .Op(']')
                               .Number(partition_count)
                               .Op('a')
                               .Text("single_partition_of_fp32_groups")
                               .Op(']')
                               .Tensor("0", 6, 0, {6}, {1})
                               .Raw("aus")
                               .End(),
                           {{"0", std::string(24, '\0')}}));
    const auto checkpoint = DeepSpeedCheckpoint::Open(fs, scratch.path());
    EXPECT_TRUE(checkpoint.Has(DeepSpeedState::kWeight, "w"));
    EXPECT_FALSE(checkpoint.Has(DeepSpeedState::kExpAvg, "w"));
  };
  const auto error = [&](const std::vector<std::int64_t>& shape) {
    return MessageOf<IoError>([&] { open(shape); });
  };
  EXPECT_NO_THROW(open({2, 3}));
  EXPECT_NO_THROW(open({5})) << "one element of padding";
  EXPECT_NE(error({7}).find("hold 6 of the 7 elements of the weights of \"w\""), std::string::npos);
  EXPECT_NE(error({4}).find("of group 0 have 4 elements, the files hold 6"), std::string::npos);
  EXPECT_NE(error({1LL << 40, 1LL << 40}).find("more than 2^63 bytes"), std::string::npos);
  EXPECT_NE(error({-2}).find("negative"), std::string::npos);
}

}  // namespace
}  // namespace ullage::files
