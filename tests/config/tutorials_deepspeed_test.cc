// Settings in the style of DeepSpeed's tutorials and examples.
#include "tutorial.h"

namespace ullage::config {
namespace {

using enum Precision;

constexpr OffloadDevice kNone = OffloadDevice::kNone;
constexpr OffloadDevice kCpu = OffloadDevice::kCpu;

const Tutorial kTutorials[] = {
    {"GettingStarted", R"({
  "train_batch_size": 8,
  "gradient_accumulation_steps": 1,
  "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
  "fp16": {"enabled": true},
  "zero_optimization": true
})",
     1, kFloat16, 0.00015, 4, 2, 0},

    {"Cifar10", R"({
  "train_batch_size": 16,
  "steps_per_print": 2000,
  "optimizer": {
    "type": "Adam",
    "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}
  },
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "bf16": {"enabled": false},
  "fp16": {
    "enabled": true, "fp16_master_weights_and_grads": false, "loss_scale": 0,
    "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 15
  },
  "wall_clock_breakdown": false,
  "zero_optimization": {
    "stage": 0, "allgather_partitions": true, "reduce_scatter": true,
    "allgather_bucket_size": 50000000, "reduce_bucket_size": 50000000, "overlap_comm": true,
    "contiguous_gradients": true, "cpu_offload": false
  }
})",
     0, kFloat16, 0.001, 2, 8, 1},

    {"CifarLegacyZero1", R"({
  "train_batch_size": 64,
  "steps_per_print": 10,
  "zero_optimization": true,
  "allgather_size": 500000000,
  "disable_allgather": true,
  "optimizer": {"type": "Adam", "params": {"lr": 0.00015, "bias_correction": true}},
  "fp16": {"enabled": true}
})",
     1, kFloat16, 0.00015, 4, 16, 0},

    {"BertPretrainingSeq128", R"({
  "train_batch_size": 65536,
  "train_micro_batch_size_per_gpu": 64,
  "steps_per_print": 1000,
  "prescale_gradients": false,
  "optimizer": {
    "type": "Adam", "params": {"lr": 6e-3, "betas": [0.9, 0.99], "weight_decay": 0.01}
  },
  "gradient_clipping": 1.0,
  "wall_clock_breakdown": false,
  "fp16": {"enabled": true, "loss_scale": 0}
})",
     0, kFloat16, 6e-3, 64, 64, 0},

    {"BertPretrainingSeq512", R"({
  "train_batch_size": 32768,
  "train_micro_batch_size_per_gpu": 8,
  "steps_per_print": 100,
  "optimizer": {"type": "AdamW", "params": {"lr": 4e-3, "weight_decay": 0.01,
                                             "bias_correction": false}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"total_num_steps": 7500, "warmup_num_steps": 750,
                           "warmup_max_lr": 4e-3}},
  "gradient_clipping": 1.0,
  "prescale_gradients": true,
  "gradient_predivide_factor": 8.0,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}
})",
     0, kFloat16, 4e-3, 64, 8, 2},

    {"BingBertSquad", R"({
  "train_batch_size": 24,
  "train_micro_batch_size_per_gpu": 3,
  "steps_per_print": 10,
  "optimizer": {
    "type": "Adam", "params": {"lr": 3e-5, "weight_decay": 0.0, "bias_correction": false}
  },
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true}
})",
     0, kFloat16, 3e-5, 8, 3, 0},

    {"BingBertSquadFp32", R"({
  "train_batch_size": 24,
  "train_micro_batch_size_per_gpu": 3,
  "steps_per_print": 10,
  "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "weight_decay": 0.0}},
  "gradient_clipping": 1.0,
  "fp16": {"enabled": false}
})",
     0, kFloat32, 3e-5, 4, 3, 0},

    {"MegatronGpt2Zero1", R"({
  "train_batch_size": 64,
  "gradient_accumulation_steps": 1,
  "steps_per_print": 1,
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
  "optimizer": {"type": "Adam", "params": {"lr": 0.00015, "weight_decay": 0.01}},
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
           "min_loss_scale": 1},
  "activation_checkpointing": {
    "partition_activations": false, "contiguous_memory_optimization": false,
    "cpu_checkpointing": false
  },
  "wall_clock_breakdown": false
})",
     1, kFloat16, 0.00015, 16, 4, 0, kNone, kNone, true},

    {"MegatronGpt2Zero2", R"({
  "train_batch_size": 32,
  "gradient_accumulation_steps": 4,
  "steps_per_print": 1,
  "zero_optimization": {
    "stage": 2,
    "contiguous_gradients": true,
    "overlap_comm": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 5e8,
    "allgather_bucket_size": 5e8
  },
  "optimizer": {"type": "Adam", "params": {"lr": 0.00015, "weight_decay": 0.01}},
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
           "min_loss_scale": 1}
})",
     2, kFloat16, 0.00015, 8, 1, 0},

    {"MegatronGpt2Zero3", R"({
  "train_micro_batch_size_per_gpu": 8,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {
    "stage": 3,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_prefetch_bucket_size": 1e7,
    "stage3_param_persistence_threshold": 1e5,
    "reduce_bucket_size": 1e7,
    "contiguous_gradients": true
  },
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 10, "loss_scale_window": 1000,
           "hysteresis": 2, "min_loss_scale": 1},
  "wall_clock_breakdown": true,
  "zero_allow_untested_optimizer": false
})",
     3, kFloat16, 1e-3, 16, 8, 0},

    {"MegatronGpt3Pretrain", R"({
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 10,
  "zero_optimization": {"stage": 0, "elastic_checkpoint": true},
  "gradient_clipping": 1.0,
  "prescale_gradients": true,
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2,
           "min_loss_scale": 1, "initial_scale_power": 11},
  "wall_clock_breakdown": false,
  "curriculum_learning": {"enabled": false}
})",
     0, kFloat16, 1e-3, 16, 4, 0},

    {"OneCycleTutorial", R"({
  "train_micro_batch_size_per_gpu": 16,
  "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
  "scheduler": {
    "type": "OneCycle",
    "params": {
      "cycle_first_step_size": 1000, "cycle_first_stair_count": 500,
      "cycle_second_step_size": 1000, "cycle_second_stair_count": 500,
      "decay_step_size": 1000,
      "cycle_min_lr": 0.0001, "cycle_max_lr": 0.0010, "decay_lr_rate": 0.001,
      "cycle_min_mom": 0.85, "cycle_max_mom": 0.99, "decay_mom_rate": 0.0
    }
  }
})",
     0, kFloat32, 1e-3, 1, 16, 4},

    {"LrRangeTestTutorial", R"({
  "train_micro_batch_size_per_gpu": 16,
  "scheduler": {
    "type": "LRRangeTest",
    "params": {
      "lr_range_test_min_lr": 0.0001, "lr_range_test_step_size": 200,
      "lr_range_test_step_rate": 5, "lr_range_test_staircase": false
    }
  }
})",
     0, kFloat32, 1e-3, 1, 16, 5},

    {"Bf16Stage1", R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 8,
  "bf16": {"enabled": true, "immediate_grad_update": true, "check_grad_overflow": true},
  "data_types": {"grad_accum_dtype": "fp32"},
  "zero_optimization": {"stage": 1},
  "communication_data_type": "fp32",
  "seq_parallel_communication_data_type": "fp32",
  "gradient_clipping": 1.0
})",
     1, kBFloat16, 1e-3, 8, 2, 0},

    {"ChatSupervisedFineTuning", R"({
  "train_batch_size": 128,
  "train_micro_batch_size_per_gpu": 8,
  "steps_per_print": 10,
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "none"},
    "offload_optimizer": {"device": "none"},
    "stage3_param_persistence_threshold": 1e4,
    "stage3_max_live_parameters": 3e7,
    "stage3_prefetch_bucket_size": 3e7,
    "memory_efficient_linear": false
  },
  "fp16": {"enabled": true, "loss_scale_window": 100},
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "wall_clock_breakdown": false,
  "hybrid_engine": {"enabled": false, "max_out_tokens": 512, "inference_tp_size": 1,
                    "release_inference_cache": false, "pin_parameters": true,
                    "tp_gather_partition_size": 8},
  "tensorboard": {"enabled": false, "output_path": "step1_tensorboard/ds_tensorboard_logs/",
                  "job_name": "step1_model_tensorboard"}
})",
     3, kFloat16, 1e-3, 8, 8, 0},

    {"MonitorsAllOff", R"({
  "train_micro_batch_size_per_gpu": 4,
  "tensorboard": {"enabled": false, "output_path": "output/ds_logs/", "job_name": "train_bert"},
  "wandb": {"enabled": false, "group": "my_group", "team": "my_team", "project": "my_project"},
  "comet": {"enabled": false, "project": "my_project", "samples_log_interval": 50},
  "csv_monitor": {"enabled": false, "output_path": "output/ds_logs/", "job_name": "train_bert"},
  "comms_logger": {"enabled": false, "verbose": false, "prof_all": true, "debug": false},
  "flops_profiler": {"enabled": false, "profile_step": 1, "module_depth": -1, "top_modules": 1,
                     "detailed": true, "output_file": null}
})",
     0, kFloat32, 1e-3, 1, 4, 0},

    {"Zero2WithEveryOption", R"({
  "train_batch_size": 16,
  "zero_optimization": {
    "stage": 2, "contiguous_gradients": true, "overlap_comm": true, "reduce_scatter": true,
    "reduce_bucket_size": 5e8, "allgather_partitions": true, "allgather_bucket_size": 5e8,
    "use_multi_rank_bucket_allreduce": false, "round_robin_gradients": true,
    "load_from_fp32_weights": true, "ignore_unused_parameters": true
  },
  "zero_allow_untested_optimizer": true,
  "optimizer": {"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}}
})",
     2, kFloat32, 0.01, 4, 4, 0},

    {"ZeroOffload", R"({
  "train_batch_size": 8,
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                        "contiguous_gradients": true, "overlap_comm": true},
  "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
  "fp16": {"enabled": true}
})",
     2, kFloat16, 0.001, 1, 8, 0, kCpu},

    {"ZeroOffloadFirstForm", R"({
  "train_batch_size": 8,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {"stage": 2, "cpu_offload": true, "cpu_offload_use_pin_memory": true,
                        "contiguous_gradients": true, "overlap_comm": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "fp16": {"enabled": true}
})",
     2, kFloat16, 0.001, 2, 4, 0, kCpu},

    {"Zero3OffloadMegatron", R"({
  "train_micro_batch_size_per_gpu": 8,
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true, "buffer_count": 4,
                          "fast_init": false},
    "offload_param": {"device": "cpu", "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8,
                      "max_in_cpu": 1e9},
    "contiguous_gradients": true, "overlap_comm": true, "sub_group_size": 1e12,
    "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5,
    "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9
  },
  "bf16": {"enabled": true}
})",
     3, kBFloat16, 1e-3, 4, 8, 0, kCpu, kCpu},

    {"OffloadPlusPlusTwinFlow", R"({
  "train_batch_size": 16,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3, "overlap_comm": true, "contiguous_gradients": true,
    "offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.3}
  }
})",
     3, kBFloat16, 1e-3, 4, 4, 0, kCpu},

    {"ActivationCheckpointingEveryLayer", R"({
  "train_batch_size": 64,
  "zero_optimization": {"stage": 1},
  "activation_checkpointing": {"number_checkpoints": 24, "contiguous_memory_optimization": true,
                               "synchronize_checkpoint_boundary": true, "profile": true}
})",
     1, kFloat32, 1e-3, 8, 8, 0, kNone, kNone, true},
};

class DeepSpeedTutorials : public testing::TestWithParam<Tutorial> {};

TEST_P(DeepSpeedTutorials, AreRead) {
  ExpectRead(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, DeepSpeedTutorials, testing::ValuesIn(kTutorials), NameOf);

const RefusedTutorial kRefused[] = {
    {"ZeroInfinity", R"({
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5,
                      "buffer_size": 1e8, "max_in_cpu": 1e9}
  },
  "aio": {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 1,
          "single_submit": false, "overlap_events": true}
})",
     "zero_optimization.offload_param.device: \"nvme\" is recognised but not offered yet"},
    {"OneBitAdamBert", R"({
  "train_batch_size": 4096,
  "optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000,
                "cuda_aware": false, "comm_backend_name": "nccl"}},
  "fp16": {"enabled": true}
})",
     "optimizer.type: \"OneBitAdam\" is recognised but not offered"},
    {"LambBert", R"({
  "train_batch_size": 65536,
  "optimizer": {"type": "Lamb", "params": {"lr": 11e-3, "weight_decay": 0.01, "max_coeff": 0.3,
                                            "min_coeff": 0.01}},
  "fp16": {"enabled": true}
})",
     "optimizer.type: \"Lamb\" is recognised but not offered"},
    {"ProgressiveLayerDrop", R"({
  "train_batch_size": 4096,
  "progressive_layer_drop": {"enabled": true, "theta": 0.5, "gamma": 0.001}
})",
     "progressive_layer_drop.enabled: true is recognised but not offered"},
    {"ZeroPlusPlus", R"({
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 16,
                        "zero_quantized_gradients": true}
})",
     "zero_optimization.zero_hpz_partition_size: 16 is recognised but not offered"},
    {"ActivationPartitioning", R"({
  "train_batch_size": 64,
  "zero_optimization": {"stage": 1},
  "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true,
                               "contiguous_memory_optimization": true, "number_checkpoints": 24,
                               "synchronize_checkpoint_boundary": true, "profile": false}
})",
     "activation_checkpointing.cpu_checkpointing: true is recognised but not offered yet"},
};

class DeepSpeedTutorialsNotOffered : public testing::TestWithParam<RefusedTutorial> {};

TEST_P(DeepSpeedTutorialsNotOffered, NameTheKey) {
  ExpectRefused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, DeepSpeedTutorialsNotOffered, testing::ValuesIn(kRefused),
                         NameOfRefused);

}  // namespace
}  // namespace ullage::config
