// Every kind of refusal, with the parts of its message.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "expect_error.h"

namespace ullage::config {
namespace {

std::string FirstLineOf(std::string_view text) {
  return FirstLine(ConfigErrorOf(text));
}
std::string FirstLineOfUnsupported(std::string_view text) {
  return FirstLine(UnsupportedErrorOf(text));
}

TEST(UnknownKey, NamesTheNearestOne) {
  EXPECT_EQ(FirstLineOf(R"({"gradient_clipp1ng": 1})"),
            "gradient_clipp1ng: unknown key; did you mean gradient_clipping?");
}

TEST(UnknownKey, SearchesAcrossLevels) {
  EXPECT_EQ(FirstLineOf(R"({"zero_stage": 2})"),
            "zero_stage: unknown key; did you mean zero_optimization.stage?");
  EXPECT_EQ(FirstLineOf(R"({"optimizer": {"type": "AdamW", "lr": 1}})"),
            "optimizer.lr: unknown key; did you mean optimizer.params.lr?");
}

TEST(UnknownKey, IsFoundAtEveryLevel) {
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"offload_param": {"devise": "none"}}})"),
            "zero_optimization.offload_param.devise: unknown key; did you mean "
            "zero_optimization.offload_param.device?");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"parameter_groups": [{"pattern": "a"}, {"lrr": 1}]}})"),
            "ullage.parameter_groups[1].lrr: unknown key; did you mean "
            "ullage.parameter_groups[].lr?");
  EXPECT_EQ(FirstLineOf(R"({"elasticity": {"enabled": false, "max_gpu": 3}})"),
            "elasticity.max_gpu: unknown key; did you mean elasticity.max_gpus?");
}

TEST(UnknownKey, IsFoundInTheSectionsOfOffloadAndRecompute) {
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"stage": 3,
                            "offload_param": {"device": "cpu", "ratio": 0.5}}})"),
            "zero_optimization.offload_param.ratio: unknown key; did you mean "
            "zero_optimization.offload_optimizer.ratio?");
  EXPECT_EQ(FirstLineOf(R"({"activation_checkpointing": {"cpu_checkpoint": false}})"),
            "activation_checkpointing.cpu_checkpoint: unknown key; did you mean "
            "activation_checkpointing.cpu_checkpointing?");
}

TEST(UnknownKey, ListsWhatTheSectionMayHold) {
  EXPECT_NE(ConfigErrorOf(R"({"ullage": {"disk": {"size": 3}}})")
                .find("hint: ullage.disk may hold: path, limit"),
            std::string::npos);
}

TEST(UnknownKey, ListsNoMoreThanALineHolds) {
  const std::string message = ConfigErrorOf(R"({"zero_optimization": {"stag": 3}})");
  EXPECT_EQ(FirstLine(message),
            "zero_optimization.stag: unknown key; did you mean zero_optimization.stage?");
  EXPECT_LT(message.size(), 200u);
}

TEST(UnknownKey, NamesNoneWhenNoneIsNear) {
  EXPECT_EQ(FirstLineOf(R"({"xyzzy": 2})"), "xyzzy: unknown key");
}

TEST(UnknownKey, ADottedKeyIsNoPath) {
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization.stage": 2})"),
            "zero_optimization.stage: unknown key; no key holds a full stop or bracket");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"parameter_groups[]": {"lr": 2}}})"),
            "ullage.parameter_groups[]: unknown key; no key holds a full stop or bracket");
}

TEST(UnknownKey, ParametersOfAnotherTypeAreUnknown) {
  EXPECT_EQ(FirstLineOf(R"({"optimizer": {"type": "Adam", "params": {"momentum": 0.9}}})"),
            "optimizer.params.momentum: unknown key");
  EXPECT_EQ(FirstLineOf(R"({"scheduler": {"type": "WarmupLR", "params": {"cycle_min_lr": 1}}})"),
            "scheduler.params.cycle_min_lr: unknown key");
}

TEST(Auto, NamesTheKeyAndWhoResolvesIt) {
  const std::string message = ConfigErrorOf(R"({"train_micro_batch_size_per_gpu": "auto"})");
  EXPECT_EQ(FirstLine(message), "train_micro_batch_size_per_gpu: \"auto\" is not resolved");
  EXPECT_NE(message.find("hint: the Hugging Face entry point fills it in from its arguments "
                         "(per_device_train_batch_size)"),
            std::string::npos)
      << message;
}

TEST(Auto, IsFoundAtEveryLevel) {
  EXPECT_EQ(FirstLineOf(R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})"),
            "optimizer.params.lr: \"auto\" is not resolved");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"reduce_bucket_size": "auto"}})"),
            "zero_optimization.reduce_bucket_size: \"auto\" is not resolved");
  EXPECT_EQ(FirstLineOf(R"({"amp": {"enabled": "auto", "opt_level": "auto"}})"),
            "amp.enabled: \"auto\" is not resolved");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"overlap_comm": "auto"}})"),
            "zero_optimization.overlap_comm: \"auto\" is not resolved");
}

TEST(WrongType, NamesKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"stage": "two"}})"),
            "zero_optimization.stage: \"two\" is not allowed; allowed: an integer from 0 to 3");
  EXPECT_EQ(FirstLineOf(R"({"fp16": {"enabled": 1}})"),
            "fp16.enabled: 1 is not allowed; allowed: true or false");
  EXPECT_EQ(FirstLineOf(R"({"fp16": true})"), "fp16: true is not allowed; allowed: a section { }");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": 2})"),
            "zero_optimization: 2 is not allowed; allowed: a section { }, or true or false");
  EXPECT_EQ(FirstLineOf(R"({"gradient_clipping": "1.0"})"),
            "gradient_clipping: \"1.0\" is not allowed; allowed: a number of at least 0");
  EXPECT_EQ(FirstLineOf(R"({"fp16": {"loss_scale": true}})"),
            "fp16.loss_scale: true is not allowed; allowed: a number from 0 to "
            "1.7014118346046923e+38");
  EXPECT_EQ(FirstLineOf(R"({"optimizer": []})"),
            "optimizer: [] is not allowed; allowed: a section { }");
  EXPECT_EQ(FirstLineOf(R"({"ignored_parameters": "head"})"),
            "ignored_parameters: \"head\" is not allowed; allowed: a list of regular expressions");
  EXPECT_EQ(FirstLineOf(R"({"activation_checkpointing": true})"),
            "activation_checkpointing: true is not allowed; allowed: a section { }");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"recompute": true}})"),
            "ullage.recompute: true is not allowed; allowed: \"none\" or \"block\"");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"parameter_groups": ["head"]}})"),
            "ullage.parameter_groups[0]: \"head\" is not allowed; allowed: a section { }");
}

TEST(OutOfRange, NamesKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"stage": 4}})"),
            "zero_optimization.stage: 4 is not allowed; allowed: an integer from 0 to 3");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"stage": 1.5}})"),
            "zero_optimization.stage: 1.5 is not allowed; allowed: an integer from 0 to 3");
  EXPECT_EQ(FirstLineOf(R"({"gradient_clipping": -1})"),
            "gradient_clipping: -1 is not allowed; allowed: a number of at least 0");
  EXPECT_EQ(FirstLineOf(R"({"train_batch_size": 0})"),
            "train_batch_size: 0 is not allowed; allowed: an integer from 1 to 2147483647, or "
            "null");
  EXPECT_EQ(FirstLineOf(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}})"),
            "optimizer.params.betas: [0.9,1] is not allowed; allowed: a list of two numbers, each "
            "at least 0 and less than 1");
  EXPECT_EQ(FirstLineOf(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "exp"}}})"),
            "scheduler.params.warmup_type: \"exp\" is not allowed; allowed: \"log\" or \"linear\"");
  EXPECT_EQ(
      FirstLineOf(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}})"),
      "scheduler.params.warmup_num_steps: 0 is not allowed; allowed: an integer from 1 to "
      "9007199254740992");
}

// A value of one key of a section, and what the answer says is allowed.
struct WrongValue {
  const char* key;
  const char* value;
  const char* allowed;
};

void ExpectWrong(const std::string& before, const std::string& section, const std::string& after,
                 const std::vector<WrongValue>& values) {
  for (const auto& [key, value, allowed] : values) {
    const std::string text = before + "{\"" + key + "\": " + value + "}" + after;
    EXPECT_EQ(FirstLineOf(text),
              section + "." + key + ": " + value + " is not allowed; allowed: " + allowed);
  }
}

TEST(OutOfRange, EveryKeyOfOffloadIsChecked) {
  const std::string share = "a number from 0 to 1";
  const char* devices = "\"none\", \"cpu\" or \"nvme\"";
  const char* truth = "true or false";
  const char* count = "an integer of at least 0";
  ExpectWrong(R"({"zero_optimization": {"stage": 3, "offload_optimizer": )",
              "zero_optimization.offload_optimizer", "}}",
              {{"device", "\"gpu\"", devices},
               {"device", "true", devices},
               {"pin_memory", "1", truth},
               {"ratio", "1.5", share.c_str()},
               {"ratio", "-0.1", share.c_str()},
               {"ratio", "\"half\"", share.c_str()},
               {"nvme_path", "3", "text, or null"},
               {"buffer_count", "-1", count},
               {"pipeline_read", "\"yes\"", truth},
               {"pipeline_write", "0", truth},
               {"fast_init", "[]", truth},
               {"cpuadam_cores_perc", "80", share.c_str()}});
  ExpectWrong(R"({"zero_optimization": {"stage": 3, "offload_param": )",
              "zero_optimization.offload_param", "}}",
              {{"device", "0", devices},
               {"pin_memory", "\"true\"", truth},
               {"nvme_path", "[]", "text, or null"},
               {"buffer_count", "1.5", count},
               {"buffer_size", "-1", count},
               {"max_in_cpu", "\"1GiB\"", count}});
  ExpectWrong(R"({"zero_optimization": )", "zero_optimization", "}",
              {{"cpu_offload", "1", "true or false, or null"},
               {"cpu_offload_param", "\"cpu\"", "true or false, or null"},
               {"offload_param", "\"cpu\"", "a section { }, or null"},
               {"offload_optimizer", "true", "a section { }, or null"}});
}

TEST(OutOfRange, EveryKeyOfRecomputeIsChecked) {
  const char* truth = "true or false";
  ExpectWrong(R"({"activation_checkpointing": )", "activation_checkpointing", "}",
              {{"partition_activations", "1", truth},
               {"cpu_checkpointing", "\"true\"", truth},
               {"contiguous_memory_optimization", "0", truth},
               {"profile", "\"off\"", truth},
               {"synchronize_checkpoint_boundary", "2", truth},
               {"number_checkpoints", "-1", "an integer of at least 0, or null"}});
  ExpectWrong(R"({"ullage": )", "ullage", "}",
              {{"recompute", "\"layer\"", "\"none\" or \"block\""}});
}

TEST(OutOfRange, SizesThatWouldHoldNothingAreRefused) {
  for (const std::string key : {"reduce_bucket_size", "allgather_bucket_size", "sub_group_size"}) {
    const std::string text = "{\"zero_optimization\": {\"" + key + "\": 0}}";
    EXPECT_EQ(FirstLineOf(text),
              "zero_optimization." + key + ": 0 is not allowed; allowed: an integer of at least 1");
  }
}

TEST(OutOfRange, BytesNameTheKey) {
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"unit_size": "4 parsecs"}})"),
            "ullage.unit_size: \"4 parsecs\" is not allowed; allowed: a number of bytes from 1 to "
            "1099511627776, such as 38e9 or \"40GiB\"");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"device_memory": -1}})"),
            "ullage.device_memory: -1 is not allowed; allowed: a number of bytes of at least 1, "
            "such as 38e9 or \"40GiB\", or null");
}

TEST(OutOfRange, PatternsMustCompileAndBeShort) {
  const std::string message = ConfigErrorOf(R"({"ignored_parameters": ["head", "a(b"]})");
  EXPECT_EQ(message.find("ignored_parameters[1]: \"a(b\" is not a regular expression: "), 0u)
      << message;
  const std::string deep = "{\"ullage\": {\"no_decay\": [\"" + std::string(100'000, '(') + "\"]}}";
  EXPECT_EQ(FirstLineOf(deep), "ullage.no_decay[0]: a pattern of 100000 bytes; allowed: 1000");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"parameter_groups": [{"pattern": "["}]}})")
                .find("ullage.parameter_groups[0].pattern: \"[\" is not a regular expression"),
            0u);
}

TEST(Missing, RequiredKeysAreNamed) {
  EXPECT_EQ(FirstLineOf(R"({"optimizer": {"params": {"lr": 1}}})"),
            "optimizer.type: missing; allowed: Adam, AdamW, SGD");
  EXPECT_EQ(FirstLineOf(R"({"scheduler": {"type": "WarmupDecayLR"}})"),
            "scheduler.params.total_num_steps: missing");
  EXPECT_EQ(FirstLineOf(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0}}})"),
            "scheduler.params.cycle_max_lr: missing");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"parameter_groups": [{"lr": 1}]}})"),
            "ullage.parameter_groups[0].pattern: missing");
}

TEST(Type, UnknownOnesNameTheNearest) {
  const std::string message = ConfigErrorOf(R"({"optimizer": {"type": "AdmW"}})");
  EXPECT_EQ(message,
            "optimizer.type: \"AdmW\" is not allowed; allowed: Adam, AdamW, SGD\n"
            "hint: did you mean AdamW?");
  EXPECT_NE(ConfigErrorOf(R"({"scheduler": {"type": "WarmupCosine"}})")
                .find("hint: did you mean WarmupCosineLR?"),
            std::string::npos);
}

TEST(Type, RecognisedOnesAreNotOffered) {
  EXPECT_EQ(FirstLineOfUnsupported(R"({"optimizer": {"type": "Lion", "params": {"lr": 1}}})"),
            "optimizer.type: \"Lion\" is recognised but not offered yet");
  EXPECT_EQ(FirstLineOfUnsupported(R"({"optimizer": {"type": "adafactor"}})"),
            "optimizer.type: \"adafactor\" is recognised but not offered yet");
  EXPECT_EQ(FirstLineOfUnsupported(R"({"optimizer": {"type": "AdamW8bit"}})"),
            "optimizer.type: \"AdamW8bit\" is recognised but not offered yet");
  EXPECT_EQ(FirstLineOfUnsupported(R"({"optimizer": {"type": "OneBitAdam"}})"),
            "optimizer.type: \"OneBitAdam\" is recognised but not offered");
  EXPECT_EQ(FirstLineOfUnsupported(R"({"scheduler": {"type": "CosineAnnealingLR"}})"),
            "scheduler.type: \"CosineAnnealingLR\" is recognised but not offered");
}

TEST(Together, ContradictionsAreNamed) {
  EXPECT_EQ(FirstLineOf(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
            "fp16.enabled and bf16.enabled: both true; allowed: one of them");
  EXPECT_EQ(FirstLineOf(R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": true}})"),
            "bf16 and bfloat16: two names of one setting");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"prefetch_bucket_size": 1,
                            "stage3_prefetch_bucket_size": 1}})"),
            "zero_optimization.prefetch_bucket_size and "
            "zero_optimization.stage3_prefetch_bucket_size: two names of one setting");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"cpu_offload": false,
                            "offload_optimizer": {"device": "none"}}})"),
            "zero_optimization.cpu_offload and zero_optimization.offload_optimizer: two names of "
            "one setting");
  EXPECT_EQ(FirstLineOf(R"({"fp16": {"initial_scale_power": 4, "min_loss_scale": 17}})"),
            "fp16.min_loss_scale: 17 is above the first scale, 2 to the power 4 "
            "(fp16.initial_scale_power)");
  EXPECT_EQ(
      FirstLineOf(R"({"bf16": {"enabled": true}, "data_types": {"param_dtype": "half"}})"),
      "data_types.param_dtype: \"half\" contradicts the enabled precision; allowed: \"bf16\"");
  EXPECT_EQ(FirstLineOf(R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})"),
            "optimizer.params.nesterov: true with momentum 0 and dampening 0; allowed: with a "
            "momentum above 0 and dampening 0");
  EXPECT_EQ(FirstLineOf(R"({"ullage": {"parameter_groups":
                            [{"pattern": "a", "lr": 1, "lr_factor": 2}]}})"),
            "ullage.parameter_groups[0].lr and ullage.parameter_groups[0].lr_factor: allowed: one "
            "of them");
}

TEST(Together, OffloadNeedsAStageThatHasSomethingToMove) {
  for (const char* stage : {"0", "1", "2"}) {
    const std::string text = std::string(R"({"zero_optimization": {"stage": )") + stage +
                             R"(, "offload_param": {"device": "cpu"}}})";
    EXPECT_EQ(ConfigErrorOf(text),
              std::string("zero_optimization.offload_param.device and zero_optimization.stage: "
                          "offloading at stage ") +
                  stage +
                  "; allowed: at stage 3\nhint: set zero_optimization.stage to 3, which works on "
                  "one rank too, or remove zero_optimization.offload_param.device");
  }
  EXPECT_EQ(ConfigErrorOf(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"),
            "zero_optimization.offload_optimizer.device and zero_optimization.stage: offloading at "
            "stage 0; allowed: at stages 1 to 3\nhint: set zero_optimization.stage to 1, 2 or 3, "
            "which works on one rank too, or remove zero_optimization.offload_optimizer.device");
  EXPECT_EQ(FirstLineOf(R"({"zero_optimization": {"stage": 2, "cpu_offload_param": true}})"),
            "zero_optimization.cpu_offload_param and zero_optimization.stage: offloading at stage "
            "2; allowed: at stage 3");
}

TEST(Together, StateOnDiskNeedsAFolder) {
  EXPECT_EQ(ConfigErrorOf(R"({"zero_optimization": {"stage": 1, "offload_optimizer": {
                "device": "nvme", "nvme_path": null}}})"),
            "zero_optimization.offload_optimizer.device: \"nvme\" needs a folder, and "
            "zero_optimization.offload_optimizer.nvme_path names none\nhint: name an existing "
            "folder on a fast local disk there");
}

TEST(Together, AnOldNameOfOffloadStandsAlone) {
  EXPECT_EQ(ConfigErrorOf(R"({"zero_optimization": {"stage": 3, "cpu_offload_param": true,
                              "offload_param": {"device": "cpu"}}})"),
            "zero_optimization.cpu_offload_param and zero_optimization.offload_param: two names of "
            "one setting\nhint: keep zero_optimization.offload_param");
}

TEST(Together, RecomputeIsNotTurnedOnAndOff) {
  EXPECT_EQ(
      ConfigErrorOf(R"({"activation_checkpointing": {}, "ullage": {"recompute": "none"}})"),
      "activation_checkpointing and ullage.recompute: the section turns recompute on, \"none\" "
      "turns it off\nhint: remove one of them");
}

TEST(Together, MaxGradNormPointsToGradientClipping) {
  const std::string message =
      ConfigErrorOf(R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 0.5}}})");
  EXPECT_NE(message.find("gradient_clipping, at the top level"), std::string::npos);
  EXPECT_NE(message.find("hint: write \"gradient_clipping\": 0.5 instead"), std::string::npos);
}

}  // namespace
}  // namespace ullage::config
