#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "config/print_effective.h"
#include "ullage/settings.h"

namespace ullage {
namespace {

EffectiveSetting Row(const Settings& settings, const std::string& key) {
  for (const EffectiveSetting& row : settings.Effective()) {
    if (row.key == key) return row;
  }
  ADD_FAILURE() << "no row " << key;
  return {};
}

void ExpectRow(const Settings& settings, const std::string& key, const std::string& value,
               const std::string& source) {
  EXPECT_EQ(Row(settings, key).value, value) << key;
  EXPECT_EQ(Row(settings, key).source, source) << key;
}

TEST(Effective, NamesTheSourceOfEachValue) {
  const Settings settings = Settings::FromText(R"({
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
    "bfloat16": {"enabled": true},
    "zero_optimization": {"stage": 3, "prefetch_bucket_size": 1000},
    "optimizer": {"type": "Adam", "params": {"lr": 5e-5}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 30}}})");
  ExpectRow(settings, "train_batch_size", "32", "file");
  ExpectRow(settings, "gradient_accumulation_steps", "train batch / micro batch / ranks",
            "derived");
  ExpectRow(settings, "gradient_clipping", "1", "default");
  ExpectRow(settings, "bf16.enabled", "true", "file");
  ExpectRow(settings, "zero_optimization.stage", "3", "file");
  ExpectRow(settings, "zero_optimization.stage3_prefetch_bucket_size", "1000 elements", "file");
  ExpectRow(settings, "zero_optimization.reduce_bucket_size", "500000000 elements", "default");
  ExpectRow(settings, "optimizer.type", "AdamW", "file");
  ExpectRow(settings, "optimizer.params.lr", "5e-05", "file");
  ExpectRow(settings, "optimizer.params.betas", "[0.9, 0.999]", "default");
  ExpectRow(settings, "scheduler.type", "WarmupLR", "file");
  ExpectRow(settings, "scheduler.params.warmup_max_lr", "5e-05", "derived");
  ExpectRow(settings, "ullage.unit_size", "32.0 MiB", "default");
}

TEST(Effective, StatesThatClippingIsOff) {
  ExpectRow(Settings::FromText(R"({"gradient_clipping": 0})"), "gradient_clipping", "0 (off)",
            "file");
}

TEST(Effective, NamesWhoSetAKeyAfterTheFile) {
  Settings settings = Settings::FromText(R"({"ullage": {"no_decay": ["a"]}})");
  ExpectRow(settings, "ullage.no_decay", "[a]", "file");
  settings.set_by["ullage.no_decay"] = "model family";
  settings.set_by["zero_optimization.stage"] = "command line";
  ExpectRow(settings, "ullage.no_decay", "[a]", "model family");
  ExpectRow(settings, "zero_optimization.stage", "0", "command line");
}

TEST(Effective, AValueThatDoesNotHoldIsNotTheFiles) {
  const Settings settings = Settings::FromText(R"({"optimizer": {"type": "SGD"},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.4,
                                                 "cycle_momentum": true}}})");
  ExpectRow(settings, "scheduler.params.cycle_momentum", "false", "default");
  ExpectRow(settings, "scheduler.params.cycle_max_lr", "0.4", "file");
}

TEST(Effective, ShowsParameterGroups) {
  ExpectRow(Settings::FromText(R"({"ullage": {"parameter_groups": [
              {"pattern": "head", "lr": 0.1}, {"pattern": "emb", "lr_factor": 0.5,
               "weight_decay": 0}]}})"),
            "ullage.parameter_groups", "[head lr 0.1; emb lr_factor 0.5 weight_decay 0]", "file");
}

TEST(Effective, ShowsWhatIsOffloadedAndHowMuch) {
  const Settings settings = Settings::FromText(R"({"zero_optimization": {"stage": 3,
    "cpu_offload_param": true, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}})");
  ExpectRow(settings, "zero_optimization.offload_optimizer.device", "cpu", "file");
  ExpectRow(settings, "zero_optimization.offload_optimizer.ratio", "0.3", "file");
  ExpectRow(settings, "zero_optimization.offload_optimizer.pin_memory", "true", "default");
  ExpectRow(settings, "zero_optimization.offload_param.device", "cpu", "file");
  ExpectRow(settings, "zero_optimization.offload_param.pin_memory", "true", "default");
  const Settings disk = Settings::FromText(R"({"zero_optimization": {"stage": 1,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}},
      "ullage": {"disk": {"path": "/disk", "limit": "1GiB"}}})");
  ExpectRow(disk, "zero_optimization.offload_optimizer.device", "nvme", "file");
  ExpectRow(disk, "zero_optimization.offload_optimizer.nvme_path", "/nvme", "file");
  ExpectRow(disk, "ullage.disk.path", "/disk", "file");
  ExpectRow(disk, "ullage.disk.limit", "1.00 GiB", "file");
}

TEST(Effective, ShowsNoDetailsOfOffloadThatIsOff) {
  const Settings settings = Settings::FromText("{}");
  ExpectRow(settings, "zero_optimization.offload_optimizer.device", "none", "default");
  ExpectRow(settings, "zero_optimization.offload_param.device", "none", "default");
  for (const EffectiveSetting& row : settings.Effective()) {
    EXPECT_FALSE(row.key.ends_with("pin_memory") || row.key.ends_with("ratio")) << row.key;
  }
}

TEST(Effective, ShowsRecomputeUnderOneNameWhoeverTurnedItOn) {
  ExpectRow(Settings::FromText("{}"), "ullage.recompute", "none", "default");
  ExpectRow(Settings::FromText(R"({"activation_checkpointing": {}})"), "ullage.recompute", "block",
            "file");
  ExpectRow(Settings::FromText(R"({"ullage": {"recompute": "none"}})"), "ullage.recompute", "none",
            "file");
}

TEST(Effective, EveryRowOfAFixedScaleIsShownOnce) {
  const Settings settings = Settings::FromText(R"({"fp16": {"enabled": true, "loss_scale": 128}})");
  ExpectRow(settings, "fp16.loss_scale", "128", "file");
  for (const EffectiveSetting& row : settings.Effective()) {
    EXPECT_NE(row.key, "fp16.hysteresis");
  }
}

TEST(Effective, EveryGivenKeyThatIsObeyedHasARow) {
  const Settings settings = Settings::FromText(R"({
    "train_batch_size": 8, "steps_per_print": 5, "gradient_clipping": 0.5,
    "ignored_parameters": ["a"], "dataloader_drop_last": true,
    "checkpoint": {"load_universal": true}, "wall_clock_breakdown": true,
    "memory_breakdown": true,
    "fp16": {"enabled": true, "initial_scale_power": 8, "loss_scale_window": 5, "hysteresis": 1,
             "consecutive_hysteresis": true, "min_loss_scale": 2},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1, "stage3_prefetch_bucket_size": 4,
      "stage3_param_persistence_threshold": 5,
      "offload_optimizer": {"device": "cpu", "pin_memory": false, "ratio": 0.5},
      "offload_param": {"device": "cpu", "pin_memory": true}},
    "optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.9, "dampening": 0.1,
      "nesterov": false, "weight_decay": 0.1}},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2,
      "decay_lr_rate": 0.1, "cycle_first_step_size": 3, "cycle_second_step_size": 4,
      "cycle_first_stair_count": 1, "cycle_second_stair_count": 2, "decay_step_size": 7,
      "cycle_momentum": false}},
    "ullage": {"unit_size": 1024, "timeout_seconds": 3, "reduce": "exact",
               "recompute": "none", "cuda_graphs": "on", "no_decay": [],
               "parameter_groups": []}})");
  for (const std::string& key : settings.given) EXPECT_EQ(Row(settings, key).source, "file") << key;
}

TEST(PrintEffective, AlignsTheColumnsAndListsWhatHasNoEffect) {
  const Settings settings = Settings::FromText(
      R"({"zero_optimization": {"stage": 1, "overlap_comm": true}, "steps_per_print": 7})");
  const std::string text = config::PrintEffective(settings);
  const std::size_t stage = text.find("zero_optimization.stage ");
  const std::size_t print = text.find("steps_per_print ");
  ASSERT_NE(stage, std::string::npos);
  ASSERT_NE(print, std::string::npos);
  EXPECT_EQ(text.find(" 1 ", stage) - stage, text.find(" 7 ", print) - print);
  EXPECT_EQ(text.find("file", stage) - stage, text.find("file", print) - print);
  EXPECT_NE(text.find("\nzero_optimization.overlap_comm: no effect, because a bucket is sent as "
                      "soon as it is full"),
            std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace ullage
