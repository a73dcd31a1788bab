#include <cstdio>
#include <fstream>

#include <gtest/gtest.h>

#include "expect_error.h"
#include "ullage/settings.h"

namespace ullage {
namespace {

TEST(ReadSettings, AnEmptyFileGivesTheDocumentedDefaults) {
  const Settings settings = Settings::FromText("{}");
  EXPECT_FALSE(settings.train_batch_size.has_value());
  EXPECT_EQ(settings.steps_per_print, 10);
  EXPECT_EQ(settings.gradient_clipping, 1.0);
  EXPECT_EQ(settings.precision, Precision::kFloat32);
  EXPECT_EQ(settings.zero.stage, 0);
  EXPECT_EQ(settings.zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(settings.zero.offload_optimizer.device, OffloadDevice::kNone);
  EXPECT_EQ(settings.zero.offload_param.device, OffloadDevice::kNone);
  EXPECT_FALSE(settings.recompute);
  EXPECT_EQ(settings.optimizer.type, OptimizerType::kAdam);
  EXPECT_TRUE(settings.optimizer.adam_w_mode);
  EXPECT_EQ(settings.optimizer.lr, 1e-3);
  EXPECT_EQ(settings.optimizer.weight_decay, 0);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(settings.scheduler));
  EXPECT_TRUE(settings.given.empty());
  EXPECT_TRUE(settings.no_effect.empty());
}

TEST(ReadSettings, TopLevelKeysReachTheirFields) {
  const Settings settings = Settings::FromText(R"({
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
    "steps_per_print": 2000, "gradient_clipping": 0.5, "dataloader_drop_last": true,
    "wall_clock_breakdown": true, "memory_breakdown": true, "checkpoint": {"load_universal": true},
    "ignored_parameters": ["rotary_emb.*", "^head"]})");
  EXPECT_EQ(settings.train_batch_size, 64);
  EXPECT_EQ(settings.train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(settings.gradient_accumulation_steps, 8);
  EXPECT_EQ(settings.steps_per_print, 2000);
  EXPECT_EQ(settings.gradient_clipping, 0.5);
  EXPECT_TRUE(settings.dataloader_drop_last);
  EXPECT_TRUE(settings.load_universal);
  EXPECT_TRUE(settings.wall_clock_breakdown);
  EXPECT_TRUE(settings.memory_breakdown);
  EXPECT_EQ(settings.ignored_parameters, (std::vector<std::string>{"rotary_emb.*", "^head"}));
}

TEST(ReadSettings, LossScaleKeysReachTheirFields) {
  const Settings settings = Settings::FromText(R"({"fp16": {
    "enabled": true, "loss_scale": 128, "initial_scale_power": 20, "loss_scale_window": 500,
    "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 2}})");
  EXPECT_EQ(settings.precision, Precision::kFloat16);
  EXPECT_EQ(settings.loss_scale.loss_scale, 128);
  EXPECT_EQ(settings.loss_scale.initial_scale_power, 20);
  EXPECT_EQ(settings.loss_scale.loss_scale_window, 500);
  EXPECT_EQ(settings.loss_scale.hysteresis, 3);
  EXPECT_TRUE(settings.loss_scale.consecutive_hysteresis);
  EXPECT_EQ(settings.loss_scale.min_loss_scale, 2);
}

TEST(ReadSettings, ZeroKeysReachTheirFields) {
  const Settings settings = Settings::FromText(R"({"zero_optimization": {
    "stage": 3, "reduce_bucket_size": 1e6,
    "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 10000}})");
  EXPECT_EQ(settings.zero.stage, 3);
  EXPECT_EQ(settings.zero.reduce_bucket_size, 1'000'000);
  EXPECT_EQ(settings.zero.prefetch_bucket_size, 0);
  EXPECT_EQ(settings.zero.param_persistence_threshold, 10'000);
}

TEST(ReadSettings, AFloatCountsAsTheIntegerItIs) {
  const Settings settings =
      Settings::FromText(R"({"zero_optimization": {"stage": 2.0, "reduce_bucket_size": 5e8}})");
  EXPECT_EQ(settings.zero.stage, 2);
  EXPECT_EQ(settings.zero.reduce_bucket_size, 500'000'000);
}

TEST(ReadSettings, OtherNamesOfAKeyMeanTheSame) {
  const Settings settings = Settings::FromText(R"({"bfloat16": {"enabled": true},
    "zero_optimization": {"stage": 3, "prefetch_bucket_size": 7,
                          "param_persistence_threshold": 8}})");
  EXPECT_EQ(settings.precision, Precision::kBFloat16);
  EXPECT_EQ(settings.zero.prefetch_bucket_size, 7);
  EXPECT_EQ(settings.zero.param_persistence_threshold, 8);
  EXPECT_EQ(settings.given,
            (std::vector<std::string>{"bf16.enabled", "zero_optimization.stage",
                                      "zero_optimization.stage3_param_persistence_threshold",
                                      "zero_optimization.stage3_prefetch_bucket_size"}));
}

TEST(ReadSettings, TheBooleanFormOfZeroMeansStageOne) {
  const Settings on = Settings::FromText(R"({"zero_optimization": true})");
  EXPECT_EQ(on.zero.stage, 1);
  EXPECT_EQ(on.given, std::vector<std::string>{"zero_optimization.stage"});
  EXPECT_EQ(Settings::FromText(R"({"zero_optimization": false})").zero.stage, 0);
}

TEST(ReadSettings, OffloadKeysReachTheirFields) {
  const ZeroSettings zero = Settings::FromText(R"({"zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": false, "ratio": 0.3},
    "offload_param": {"device": "CPU"}}})")
                                .zero;
  EXPECT_EQ(zero.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_FALSE(zero.offload_optimizer.pin_memory);
  EXPECT_EQ(zero.offload_optimizer.ratio, 0.3);
  EXPECT_EQ(zero.offload_param.device, OffloadDevice::kCpu);
  EXPECT_TRUE(zero.offload_param.pin_memory);
  EXPECT_FALSE(Settings::FromText(R"({"zero_optimization": {"stage": 3,
    "offload_param": {"device": "cpu", "pin_memory": false}}})")
                   .zero.offload_param.pin_memory);
}

TEST(ReadSettings, TheFolderOfStateOnDiskIsTheSectionsOwnOrTheCommonOne) {
  const Settings own = Settings::FromText(R"({"zero_optimization": {"stage": 1,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "ratio": 0.4}},
    "ullage": {"disk": {"limit": "2GiB"}}})");
  EXPECT_EQ(own.zero.offload_optimizer.device, OffloadDevice::kNvme);
  EXPECT_EQ(own.zero.offload_optimizer.nvme_path, "/nvme");
  EXPECT_EQ(own.zero.offload_optimizer.ratio, 0.4);
  EXPECT_EQ(own.ullage.disk_limit, std::int64_t{2} << 30);
  const Settings common = Settings::FromText(R"({"zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme"}}, "ullage": {"disk": {"path": "/disk"}}})");
  EXPECT_EQ(common.zero.offload_optimizer.nvme_path, "");
  EXPECT_EQ(common.ullage.disk_path, "/disk");
}

TEST(ReadSettings, OffloadMovesAllOfTheStateIntoLockedMemoryByDefault) {
  const Settings settings = Settings::FromText(
      R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}})");
  EXPECT_TRUE(settings.zero.offload_optimizer.pin_memory);
  EXPECT_EQ(settings.zero.offload_optimizer.ratio, 1.0);
  EXPECT_EQ(settings.zero.offload_param.device, OffloadDevice::kNone);
}

TEST(ReadSettings, ASectionOfOffloadWithoutADeviceMovesNothing) {
  for (const char* section : {"{}", R"({"ratio": 0.5, "pin_memory": true})",
                              R"({"device": "none", "ratio": 0.5})", "null"}) {
    const std::string text =
        std::string(R"({"zero_optimization": {"offload_optimizer": )") + section + "}}";
    EXPECT_EQ(Settings::FromText(text).zero.offload_optimizer.device, OffloadDevice::kNone) << text;
  }
}

TEST(ReadSettings, TheOldNamesOfOffloadMeanTheSame) {
  const Settings settings = Settings::FromText(
      R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_param": true}})");
  EXPECT_EQ(settings.zero.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_EQ(settings.zero.offload_optimizer.ratio, 1.0);
  EXPECT_EQ(settings.zero.offload_param.device, OffloadDevice::kCpu);
  EXPECT_EQ(settings.given, (std::vector<std::string>{"zero_optimization.offload_optimizer.device",
                                                      "zero_optimization.offload_param.device",
                                                      "zero_optimization.stage"}));
  const Settings off = Settings::FromText(
      R"({"zero_optimization": {"cpu_offload": false, "cpu_offload_param": null}})");
  EXPECT_EQ(off.zero.offload_optimizer.device, OffloadDevice::kNone);
  EXPECT_EQ(off.zero.offload_param.device, OffloadDevice::kNone);
}

TEST(ReadSettings, ASectionActivationCheckpointingTurnsRecomputeOn) {
  EXPECT_TRUE(Settings::FromText(R"({"activation_checkpointing": {}})").recompute);
  const Settings all_off = Settings::FromText(R"({"activation_checkpointing":
    {"partition_activations": false, "cpu_checkpointing": false}})");
  EXPECT_TRUE(all_off.recompute);
}

TEST(ReadSettings, RecomputeHasAWordOfItsOwn) {
  EXPECT_TRUE(Settings::FromText(R"({"ullage": {"recompute": "block"}})").recompute);
  EXPECT_FALSE(Settings::FromText(R"({"ullage": {"recompute": "none"}})").recompute);
  EXPECT_TRUE(
      Settings::FromText(R"({"activation_checkpointing": {}, "ullage": {"recompute": "block"}})")
          .recompute);
}

TEST(ReadSettings, AdamParametersReachTheirFields) {
  const Settings settings = Settings::FromText(R"({"optimizer": {"type": "Adam", "params": {
    "lr": 5e-5, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.01,
    "bias_correction": false, "adam_w_mode": false, "amsgrad": false, "torch_adam": true}}})");
  EXPECT_EQ(settings.optimizer.type, OptimizerType::kAdam);
  EXPECT_EQ(settings.optimizer.lr, 5e-5);
  EXPECT_EQ(settings.optimizer.beta1, 0.8);
  EXPECT_EQ(settings.optimizer.beta2, 0.99);
  EXPECT_EQ(settings.optimizer.eps, 1e-6);
  EXPECT_EQ(settings.optimizer.weight_decay, 0.01);
  EXPECT_FALSE(settings.optimizer.bias_correction);
  EXPECT_FALSE(settings.optimizer.adam_w_mode);
}

TEST(ReadSettings, AdamDecouplesWeightDecayUnlessToldOtherwise) {
  EXPECT_TRUE(Settings::FromText(R"({"optimizer": {"type": "Adam"}})").optimizer.adam_w_mode);
}

TEST(ReadSettings, AdamWAlwaysDecouplesAndSaysSo) {
  const Settings settings =
      Settings::FromText(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})");
  EXPECT_TRUE(settings.optimizer.adam_w_mode);
  EXPECT_EQ(settings.no_effect,
            (std::vector<std::string>{
                "optimizer.params.adam_w_mode: no effect, because AdamW always decouples weight "
                "decay; the type Adam with false does not"}));
}

TEST(ReadSettings, OptimizerTypesAreFoundWhateverTheirCase) {
  for (const char* name : {"adam", "ADAMW", "AdamW"}) {
    const std::string text = std::string(R"({"optimizer": {"type": ")") + name + "\"}}";
    EXPECT_EQ(Settings::FromText(text).optimizer.type, OptimizerType::kAdam);
  }
  EXPECT_EQ(Settings::FromText(R"({"optimizer": {"type": "sgd"}})").optimizer.type,
            OptimizerType::kSgd);
}

TEST(ReadSettings, SgdParametersReachTheirFields) {
  const Settings settings = Settings::FromText(R"({"optimizer": {"type": "SGD", "params": {
    "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": true}}})");
  EXPECT_EQ(settings.optimizer.type, OptimizerType::kSgd);
  EXPECT_EQ(settings.optimizer.lr, 0.1);
  EXPECT_EQ(settings.optimizer.momentum, 0.9);
  EXPECT_EQ(settings.optimizer.weight_decay, 1e-4);
  EXPECT_TRUE(settings.optimizer.nesterov);
  const Settings damped = Settings::FromText(
      R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "dampening": 0.5}}})");
  EXPECT_EQ(damped.optimizer.dampening, 0.5);
}

TEST(ReadSettings, WarmupLrReachesItsFields) {
  const Settings settings = Settings::FromText(R"({"scheduler": {"type": "WarmupLR", "params": {
    "warmup_min_lr": 1e-6, "warmup_max_lr": 1e-3, "warmup_num_steps": 100,
    "warmup_type": "linear"}}})");
  const auto& warmup = std::get<WarmupLr>(settings.scheduler);
  EXPECT_EQ(warmup.min_lr, 1e-6);
  EXPECT_EQ(warmup.max_lr, 1e-3);
  EXPECT_EQ(warmup.warmup_steps, 100);
  EXPECT_FALSE(warmup.logarithmic);
}

TEST(ReadSettings, WarmupLrRisesToTheOptimizersRateByDefault) {
  const Settings settings = Settings::FromText(R"({"scheduler": {"type": "WarmupLR"}})");
  const auto& warmup = std::get<WarmupLr>(settings.scheduler);
  EXPECT_FALSE(warmup.max_lr.has_value());
  EXPECT_TRUE(warmup.logarithmic);
  EXPECT_EQ(warmup.warmup_steps, 1000);
}

TEST(ReadSettings, WarmupDecayLrRisesToAThousandthByDefaultAndToTheOptimizersRateForNull) {
  const Settings absent = Settings::FromText(
      R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000}}})");
  EXPECT_EQ(std::get<WarmupDecayLr>(absent.scheduler).total_steps, 5000);
  EXPECT_EQ(std::get<WarmupDecayLr>(absent.scheduler).warmup.max_lr, 1e-3);
  const Settings null = Settings::FromText(R"({"scheduler": {"type": "WarmupDecayLR",
    "params": {"total_num_steps": 5000, "warmup_max_lr": null}}})");
  EXPECT_FALSE(std::get<WarmupDecayLr>(null.scheduler).warmup.max_lr.has_value());
}

TEST(ReadSettings, WarmupCosineLrReachesItsFields) {
  const Settings settings =
      Settings::FromText(R"({"scheduler": {"type": "WarmupCosineLR", "params": {
    "total_num_steps": 1000, "warmup_min_ratio": 0.1, "warmup_num_steps": 50,
    "cos_min_ratio": 0.01, "warmup_type": "linear"}}})");
  const auto& cosine = std::get<WarmupCosineLr>(settings.scheduler);
  EXPECT_EQ(cosine.total_steps, 1000);
  EXPECT_EQ(cosine.warmup_min_ratio, 0.1);
  EXPECT_EQ(cosine.warmup_steps, 50);
  EXPECT_EQ(cosine.cos_min_ratio, 0.01);
  EXPECT_FALSE(cosine.logarithmic);
}

TEST(ReadSettings, OneCycleReachesItsFields) {
  const Settings settings = Settings::FromText(R"({"scheduler": {"type": "OneCycle", "params": {
    "cycle_min_lr": 0.1, "cycle_max_lr": 0.4, "decay_lr_rate": 0.5, "cycle_first_step_size": 10,
    "cycle_second_step_size": 20, "cycle_first_stair_count": 2, "cycle_second_stair_count": 4,
    "decay_step_size": 5, "cycle_momentum": true, "cycle_min_mom": 0.7, "cycle_max_mom": 0.95,
    "decay_mom_rate": 0.01}}})");
  const auto& cycle = std::get<OneCycleLr>(settings.scheduler);
  EXPECT_EQ(cycle.min_lr, 0.1);
  EXPECT_EQ(cycle.max_lr, 0.4);
  EXPECT_EQ(cycle.decay_lr_rate, 0.5);
  EXPECT_EQ(cycle.first_steps, 10);
  EXPECT_EQ(cycle.second_steps, 20);
  EXPECT_EQ(cycle.first_stairs, 2);
  EXPECT_EQ(cycle.second_stairs, 4);
  EXPECT_EQ(cycle.decay_step_size, 5);
  EXPECT_TRUE(cycle.cycle_momentum);
  EXPECT_EQ(cycle.min_momentum, 0.7);
  EXPECT_EQ(cycle.max_momentum, 0.95);
  EXPECT_EQ(cycle.decay_momentum_rate, 0.01);
}

TEST(ReadSettings, OneCycleLeavesTheMomentumOfSgdAloneAndSaysSo) {
  const Settings settings = Settings::FromText(R"({"optimizer": {"type": "SGD"},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.4}}})");
  EXPECT_FALSE(std::get<OneCycleLr>(settings.scheduler).cycle_momentum);
  ASSERT_EQ(settings.no_effect.size(), 1u);
  EXPECT_EQ(settings.no_effect[0].find("scheduler.params.cycle_momentum: no effect"), 0u);
}

TEST(ReadSettings, RangeTestReachesItsFields) {
  const Settings settings = Settings::FromText(R"({"scheduler": {"type": "LRRangeTest", "params": {
    "lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 200, "lr_range_test_step_rate": 5,
    "lr_range_test_staircase": true}}})");
  const auto& range = std::get<RangeTestLr>(settings.scheduler);
  EXPECT_EQ(range.min_lr, 1e-4);
  EXPECT_EQ(range.step_size, 200);
  EXPECT_EQ(range.step_rate, 5);
  EXPECT_TRUE(range.staircase);
}

TEST(ReadSettings, UllageKeysReachTheirFields) {
  const Settings settings = Settings::FromText(R"({"ullage": {
    "unit_size": "4MiB", "timeout_seconds": 20, "reduce": "exact", "no_decay": ["bias$", "Norm"],
    "parameter_groups": [{"pattern": "^head", "lr": 0.1, "weight_decay": 0},
                         {"pattern": "layer\\.0", "lr_factor": 0.5}]}})");
  EXPECT_EQ(settings.ullage.unit_size, 4 << 20);
  EXPECT_EQ(settings.ullage.timeout_seconds, 20);
  EXPECT_EQ(settings.ullage.no_decay, (std::vector<std::string>{"bias$", "Norm"}));
  ASSERT_EQ(settings.ullage.parameter_groups.size(), 2u);
  EXPECT_EQ(settings.ullage.parameter_groups[0].pattern, "^head");
  EXPECT_EQ(settings.ullage.parameter_groups[0].lr, 0.1);
  EXPECT_EQ(settings.ullage.parameter_groups[0].weight_decay, 0);
  EXPECT_FALSE(settings.ullage.parameter_groups[0].lr_factor.has_value());
  EXPECT_EQ(settings.ullage.parameter_groups[1].pattern, "layer\\.0");
  EXPECT_EQ(settings.ullage.parameter_groups[1].lr_factor, 0.5);
}

TEST(ReadSettings, AnEmptyListOfNoDecayIsNotTheFamilysList) {
  const Settings settings = Settings::FromText(R"({"ullage": {"no_decay": []}})");
  ASSERT_TRUE(settings.ullage.no_decay.has_value());
  EXPECT_TRUE(settings.ullage.no_decay->empty());
  EXPECT_FALSE(Settings::FromText("{}").ullage.no_decay.has_value());
}

TEST(ReadSettings, AFileIsReadWithItsPathInMessages) {
  const std::string path = testing::TempDir() + "ullage_settings.json";
  std::ofstream(path) << "{\"zero_optimization\": {\"stage\": 2}} // two\n";
  EXPECT_EQ(Settings::FromFile(path).zero.stage, 2);
  std::ofstream(path) << "{\"zero_optimization\": ";
  try {
    Settings::FromFile(path);
    ADD_FAILURE() << "a truncated file was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(path + ": byte "), std::string::npos) << error.what();
  }
  std::remove(path.c_str());
}

TEST(ReadSettings, AMissingFileIsAnIoErrorWithItsPath) {
  try {
    Settings::FromFile("no/such/ds_config.json");
    ADD_FAILURE() << "a missing file was accepted";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("no/such/ds_config.json: cannot be read: No such"),
              std::string::npos)
        << error.what();
  }
}

TEST(ReadSettings, ADirectoryIsAnIoError) {
  EXPECT_THROW(Settings::FromFile(testing::TempDir()), IoError);
}

TEST(ReadSettings, AnEndlessFileIsRefusedBySize) {
  EXPECT_THROW(Settings::FromFile("/dev/zero"), ConfigError);
}

}  // namespace
}  // namespace ullage
