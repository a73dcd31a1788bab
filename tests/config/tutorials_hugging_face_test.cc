// Settings in the style of the Hugging Face, Accelerate and fine-tuning guides, with the values
// that the Trainer puts in place of "auto".
#include "tutorial.h"

namespace ullage::config {
namespace {

using enum Precision;

constexpr OffloadDevice kCpu = OffloadDevice::kCpu;

const Tutorial kTutorials[] = {
    {"TrainerZero1", R"({
  "zero_optimization": {"stage": 1},
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 8,
  "gradient_accumulation_steps": 2
})",
     1, kFloat32, 1e-3, 2, 8, 0},

    {"TrainerZero2", R"({
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000,
           "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "optimizer": {"type": "AdamW",
                "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "scheduler": {"type": "WarmupLR",
                "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
  "zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 2e8,
                        "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8,
                        "contiguous_gradients": true},
  "gradient_accumulation_steps": 1,
  "gradient_clipping": 1.0,
  "steps_per_print": 2000,
  "train_batch_size": 16,
  "train_micro_batch_size_per_gpu": 8,
  "wall_clock_breakdown": false
})",
     2, kFloat16, 3e-5, 2, 8, 1},

    {"TrainerZero3", R"({
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW",
                "params": {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"total_num_steps": 3000, "warmup_min_lr": 0, "warmup_max_lr": 5e-5,
                           "warmup_num_steps": 300}},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
                        "sub_group_size": 1e9, "reduce_bucket_size": 589824,
                        "stage3_prefetch_bucket_size": 530841,
                        "stage3_param_persistence_threshold": 7680,
                        "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
                        "stage3_gather_16bit_weights_on_model_save": true},
  "gradient_accumulation_steps": 4,
  "gradient_clipping": 1.0,
  "steps_per_print": 2000,
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "wall_clock_breakdown": false
})",
     3, kBFloat16, 5e-5, 4, 4, 2},

    {"TrainerSingleCardZero2", R"({
  "fp16": {"enabled": true},
  "zero_optimization": {"stage": 2, "allgather_bucket_size": 2e8, "reduce_bucket_size": 2e8,
                        "overlap_comm": true, "offload_optimizer": {"device": "none"}},
  "train_micro_batch_size_per_gpu": 16
})",
     2, kFloat16, 1e-3, 1, 16, 0},

    {"TrainerOldNames", R"({
  "fp16": {"enabled": true, "loss_scale": 0},
  "zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": true,
                        "cpu_offload": false, "cpu_offload_param": false},
  "train_micro_batch_size_per_gpu": 1
})",
     3, kFloat16, 1e-3, 1, 1, 0},

    {"TrainerWithApexOff", R"({
  "amp": {"enabled": false, "opt_level": "O1"},
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2},
  "train_micro_batch_size_per_gpu": 8
})",
     2, kBFloat16, 1e-3, 1, 8, 0},

    {"AccelerateZero2", R"({
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 16,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {"stage": 2,
                        "offload_optimizer": {"device": "none", "nvme_path": null},
                        "offload_param": {"device": "none", "nvme_path": null},
                        "stage3_gather_16bit_weights_on_model_save": false},
  "gradient_clipping": 1.0,
  "steps_per_print": 1000000000,
  "fp16": {"enabled": false},
  "bf16": {"enabled": true},
  "zero_allow_untested_optimizer": true
})",
     2, kBFloat16, 1e-3, 2, 16, 0},

    {"AccelerateZero3NodeLocal", R"({
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "checkpoint": {"use_node_local_storage": false},
  "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}
})",
     3, kBFloat16, 1e-3, 8, 4, 0},

    {"LlamaFineTuneZero3", R"({
  "train_batch_size": 128,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 4,
  "gradient_clipping": 1.0,
  "zero_allow_untested_optimizer": true,
  "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000,
           "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "overlap_comm": false, "contiguous_gradients": true,
                        "sub_group_size": 1e9, "reduce_bucket_size": 16777216,
                        "stage3_prefetch_bucket_size": 15099494,
                        "stage3_param_persistence_threshold": 40960,
                        "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
                        "stage3_gather_16bit_weights_on_model_save": true}
})",
     3, kBFloat16, 1e-3, 8, 4, 0},

    {"LlamaFineTuneZero2", R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 8,
  "gradient_clipping": 1.0,
  "zero_allow_untested_optimizer": true,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 5e8,
                        "overlap_comm": false, "reduce_scatter": true, "reduce_bucket_size": 5e8,
                        "contiguous_gradients": true, "round_robin_gradients": true}
})",
     2, kBFloat16, 1e-3, 8, 2, 0},

    {"LlamaFineTuneZero0", R"({
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 16,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 0, "allgather_partitions": true, "allgather_bucket_size": 5e8,
                        "overlap_comm": false, "reduce_scatter": true, "reduce_bucket_size": 5e8,
                        "contiguous_gradients": true, "round_robin_gradients": true}
})",
     0, kBFloat16, 1e-3, 4, 1, 0},

    {"VicunaStyleZero3", R"({
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW",
                "params": {"lr": 2e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
  "scheduler": {"type": "WarmupCosineLR",
                "params": {"total_num_steps": 1500, "warmup_min_ratio": 0, "warmup_num_steps": 45,
                           "cos_min_ratio": 0.1, "warmup_type": "linear"}},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
                        "stage3_prefetch_bucket_size": 0,
                        "stage3_param_persistence_threshold": 1e5},
  "train_batch_size": 128,
  "train_micro_batch_size_per_gpu": 2
})",
     3, kBFloat16, 2e-5, 8, 2, 3},

    {"CommentedByItsAuthor", R"({
  // one card, small memory
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 4, /* 16 in all */
  "zero_optimization": {"stage": 1},
  "optimizer": {"type": "adamw", "params": {"lr": 2e-5, "torch_adam": true}}
})",
     1, kFloat32, 2e-5, 1, 4, 0},

    {"RotaryBuffersKeptWhole", R"({
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3},
  "ignored_parameters": ["rotary_emb.*"],
  "gradient_clipping": 0.5
})",
     3, kBFloat16, 1e-3, 2, 2, 0},

    {"UllageQuickStart", R"({
  "train_batch_size": 32,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 1e6},
  "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "weight_decay": 0.01}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"total_num_steps": 300, "warmup_num_steps": 30, "warmup_max_lr": 5e-5,
                           "warmup_type": "linear"}},
  "ullage": {"unit_size": "4MiB", "timeout_seconds": 60,
             "no_decay": ["bias$", "LayerNorm\\.weight$"],
             "parameter_groups": [{"pattern": "^classifier", "lr_factor": 10}]}
})",
     3, kFloat32, 5e-5, 2, 16, 2},

    {"SgdStaticScale", R"({
  "train_batch_size": 256,
  "fp16": {"enabled": true, "loss_scale": 128},
  "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4,
                                           "nesterov": true}},
  "zero_optimization": {"stage": 1}
})",
     1, kFloat16, 0.1, 4, 64, 0},

    {"TrainerZero2Offload", R"({
  "fp16": {"enabled": true},
  "optimizer": {"type": "AdamW",
                "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                        "allgather_partitions": true, "allgather_bucket_size": 2e8,
                        "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8,
                        "contiguous_gradients": true},
  "train_micro_batch_size_per_gpu": 8
})",
     2, kFloat16, 3e-5, 1, 8, 0, kCpu},

    {"TrainerZero3Offload", R"({
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3,
                        "offload_optimizer": {"device": "cpu", "pin_memory": true},
                        "offload_param": {"device": "cpu", "pin_memory": true},
                        "overlap_comm": true},
  "train_micro_batch_size_per_gpu": 1
})",
     3, kBFloat16, 1e-3, 1, 1, 0, kCpu, kCpu},

    {"AccelerateZero3Offload", R"({
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {"stage": 3,
                        "offload_optimizer": {"device": "cpu", "nvme_path": null},
                        "offload_param": {"device": "cpu", "nvme_path": null},
                        "stage3_gather_16bit_weights_on_model_save": true},
  "gradient_clipping": 1.0,
  "steps_per_print": 1000000000,
  "fp16": {"enabled": false},
  "bf16": {"enabled": true}
})",
     3, kBFloat16, 1e-3, 2, 4, 0, kCpu, kCpu},

    {"TrainerZeroInfinityNvme", R"({
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3,
                        "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme",
                                              "pin_memory": true, "buffer_count": 4},
                        "offload_param": {"device": "cpu", "pin_memory": true}},
  "train_micro_batch_size_per_gpu": 1
})",
     3, kBFloat16, 1e-3, 1, 1, 0, OffloadDevice::kNvme, kCpu},

    {"UniversalCheckpoint", R"({
  "checkpoint": {"load_universal": true},
  "train_micro_batch_size_per_gpu": 1
})",
     0, kFloat32, 1e-3, 1, 1, 0},
};

class HuggingFaceGuides : public testing::TestWithParam<Tutorial> {};

TEST_P(HuggingFaceGuides, AreRead) {
  ExpectRead(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, HuggingFaceGuides, testing::ValuesIn(kTutorials), NameOf);

const RefusedTutorial kRefused[] = {
    {"TorchAutocast", R"({
  "torch_autocast": {"enabled": true, "dtype": "bfloat16",
                     "lower_precision_safe_modules": ["torch.nn.modules.linear.Linear"]},
  "train_micro_batch_size_per_gpu": 1
})",
     "torch_autocast.enabled: true is recognised but not offered"},
    {"WandbOn", R"({"wandb": {"enabled": true, "project": "mine"}})",
     "wandb.enabled: true is recognised but not offered"},
    {"HostBudgetBeforeThePlanner", R"({
  "train_micro_batch_size_per_gpu": 1,
  "ullage": {"device_memory": "40GiB", "host_memory": "96GiB"}
})",
     "ullage.host_memory: 103079215104 is recognised but not offered yet"},
};

class HuggingFaceGuidesNotOffered : public testing::TestWithParam<RefusedTutorial> {};

TEST_P(HuggingFaceGuidesNotOffered, NameTheKey) {
  ExpectRefused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, HuggingFaceGuidesNotOffered, testing::ValuesIn(kRefused),
                         NameOfRefused);

}  // namespace
}  // namespace ullage::config
