// Keys that change nothing here, and keys that are recognised but not offered.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "expect_error.h"

namespace ullage::config {
namespace {

std::vector<std::string> NoEffect(std::string_view text) {
  return Settings::FromText(text).no_effect;
}

using Lines = std::vector<std::string>;

TEST(NoEffect, SaysWhichKeyAndWhy) {
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"contiguous_gradients": true}})"),
            Lines{"zero_optimization.contiguous_gradients: no effect, because gradients always go "
                  "into flat buckets, and none is kept beside them"});
  EXPECT_EQ(NoEffect(R"({"prescale_gradients": true})"),
            Lines{"prescale_gradients: no effect, because gradients are summed in fp32 and divided "
                  "once, so the order cannot overflow"});
}

TEST(NoEffect, NamesTheKeyAsTheFileDoes) {
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"max_reuse_distance": 1e9}})"),
            Lines{"zero_optimization.max_reuse_distance: no effect, because the ring of gathered "
                  "parameters has a planned size"});
}

TEST(NoEffect, Stage3SizesAtAnotherStage) {
  const Lines lines =
      NoEffect(R"({"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 1e7}})");
  EXPECT_EQ(lines, Lines{"zero_optimization.stage3_prefetch_bucket_size: no effect, because stage "
                         "2 does not split parameters"});
  EXPECT_TRUE(NoEffect(R"({"zero_optimization": {"stage": 3,
                           "stage3_prefetch_bucket_size": 1e7}})")
                  .empty());
}

TEST(NoEffect, SizesOfWorkThatGoesByUnit) {
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"allgather_bucket_size": 2e8}})"),
            Lines{"zero_optimization.allgather_bucket_size: no effect, because weights are "
                  "gathered by unit, and ullage.unit_size says how large one is"});
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"sub_group_size": 1e9}})"),
            Lines{"zero_optimization.sub_group_size: no effect, because the optimizer updates unit "
                  "by unit, and ullage.unit_size says how large one is"});
  EXPECT_EQ(NoEffect(R"({"zero_optimization": true, "allgather_size": 1000})"),
            Lines{"allgather_size: no effect, because weights are gathered by unit, and "
                  "ullage.unit_size says how large one is"});
}

TEST(NoEffect, TheDetailsOfStateOnTheHost) {
  EXPECT_EQ(
      NoEffect(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu",
                   "buffer_count": 4, "cpuadam_cores_perc": 0.8, "fast_init": false,
                   "nvme_path": "/nvme", "pipeline_read": true, "pipeline_write": true}}})"),
      (Lines{
          "zero_optimization.offload_optimizer.buffer_count: no effect, because buffers have the "
          "number and size that the plan says",
          "zero_optimization.offload_optimizer.cpuadam_cores_perc: no effect, because the engine "
          "uses the cores that it may use",
          "zero_optimization.offload_optimizer.fast_init: no effect, because moments start as "
          "zeros, which the file holds without being written",
          "zero_optimization.offload_optimizer.pipeline_read: no effect, because state on disk is "
          "always read ahead of its update and written behind it",
          "zero_optimization.offload_optimizer.pipeline_write: no effect, because state on disk "
          "is always read ahead of its update and written behind it",
          "zero_optimization.offload_optimizer.nvme_path: no effect, because nothing is moved to "
          "disk"}));
}

TEST(NoEffect, TheDetailsOfStateOnDisk) {
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {
                             "device": "nvme", "nvme_path": "/nvme", "buffer_count": 4}},
                         "aio": {"queue_depth": 32}})"),
            (Lines{"aio.queue_depth: no effect, because the engine chooses size and number of disk "
                   "requests",
                   "zero_optimization.offload_optimizer.buffer_count: no effect, because buffers "
                   "have the number and size that the plan says"}));
}

TEST(NoEffect, AFolderOnDiskThatNothingIsMovedTo) {
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
                         "ullage": {"disk": {"path": "/disk", "limit": "1TB"}}})"),
            (Lines{"ullage.disk.path: no effect, because nothing is moved to disk",
                   "ullage.disk.limit: no effect, because nothing is moved to disk"}));
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"stage": 1, "offload_optimizer": {
                             "device": "nvme", "nvme_path": "/nvme"}},
                         "ullage": {"disk": {"path": "/disk", "limit": "1TB"}}})"),
            Lines{"ullage.disk.path: no effect, because "
                  "zero_optimization.offload_optimizer.nvme_path names the folder"});
  EXPECT_TRUE(NoEffect(R"({"zero_optimization": {"stage": 1, "offload_optimizer": {
                               "device": "nvme"}}, "ullage": {"disk": {"path": "/disk"}}})")
                  .empty());
}

TEST(NoEffect, TheDetailsOfWeightsOnTheHost) {
  EXPECT_EQ(NoEffect(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu",
                         "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9,
                         "nvme_path": null}}})"),
            (Lines{"zero_optimization.offload_param.buffer_count: no effect, because buffers have "
                   "the number and size that the plan says",
                   "zero_optimization.offload_param.buffer_size: no effect, because buffers have "
                   "the number and size that the plan says",
                   "zero_optimization.offload_param.max_in_cpu: no effect, because weights are "
                   "not moved to disk"}));
}

TEST(NoEffect, TheDetailsOfOffloadThatIsOffAreNotListed) {
  EXPECT_TRUE(NoEffect(R"({"zero_optimization": {"stage": 2,
                           "offload_optimizer": {"device": "none", "buffer_count": 4},
                           "offload_param": {"buffer_size": 1e8, "nvme_path": "/nvme"}}})")
                  .empty());
}

TEST(NoEffect, TheDetailsOfRecompute) {
  EXPECT_EQ(NoEffect(R"({"activation_checkpointing": {"number_checkpoints": 24, "profile": true,
                         "contiguous_memory_optimization": true,
                         "synchronize_checkpoint_boundary": true}})"),
            (Lines{"activation_checkpointing.contiguous_memory_optimization: no effect, because it "
                   "arranges activations that are split over ranks, and none are",
                   "activation_checkpointing.number_checkpoints: no effect, because every block of "
                   "the model is recomputed, however many there are",
                   "activation_checkpointing.profile: no effect, because wall_clock_breakdown "
                   "shows the time of each phase",
                   "activation_checkpointing.synchronize_checkpoint_boundary: no effect, because "
                   "nothing waits for the device between blocks, and no result depends on it"}));
}

TEST(NoEffect, AKeyThatIsNullIsAbsent) {
  EXPECT_TRUE(NoEffect(R"({"zero_optimization": {"overlap_comm": null},
                           "activation_checkpointing": {"number_checkpoints": null}})")
                  .empty());
}

TEST(NoEffect, ValuesAreCheckedAllTheSame) {
  EXPECT_EQ(FirstLine(ConfigErrorOf(R"({"zero_optimization": {"overlap_comm": "yes"}})")),
            "zero_optimization.overlap_comm: \"yes\" is not allowed; allowed: true or false, or "
            "null");
}

TEST(NoEffect, TheDetailsOfADisabledFeatureAreNotListed) {
  EXPECT_TRUE(NoEffect(R"({"tensorboard": {"enabled": false, "output_path": "logs/"}})").empty());
}

TEST(NotOffered, SaysWhyAndWhatToDo) {
  EXPECT_EQ(UnsupportedErrorOf(R"({"elasticity": {"enabled": true}})"),
            "elasticity.enabled: true is recognised but not offered: the batch size is what the "
            "file says\nhint: remove the key, or set it to false");
}

TEST(NotOffered, WeightsOnDiskHaveTheHostInTheirPlace) {
  EXPECT_EQ(UnsupportedErrorOf(R"({"zero_optimization": {"stage": 3, "offload_param": {
                "device": "nvme"}}})"),
            "zero_optimization.offload_param.device: \"nvme\" is recognised but not offered yet: "
            "weights are not moved to disk\nhint: set it to \"cpu\" or \"none\"");
}

// Text that is refused, and the start of the answer.
struct Refusal {
  const char* text;
  const char* start;
};

void ExpectRefusals(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    const std::string message = UnsupportedErrorOf(refusal.text);
    EXPECT_EQ(message.substr(0, std::string(refusal.start).size()), refusal.start) << refusal.text;
  }
}

TEST(NotOffered, WhatALaterReleaseBringsSaysYet) {
  ExpectRefusals({
      {R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/nvme"}}})",
       "zero_optimization.offload_param.device: \"nvme\" is recognised but not offered yet: "},
      {R"({"activation_checkpointing": {"partition_activations": true}})",
       "activation_checkpointing.partition_activations: true is recognised but not offered yet: "
       "the input of each block stays whole on the rank that made it"},
      {R"({"activation_checkpointing": {"cpu_checkpointing": true}})",
       "activation_checkpointing.cpu_checkpointing: true is recognised but not offered yet: the "
       "input of each block stays on its device"},
      {R"({"tensorboard": {"enabled": true}})",
       "tensorboard.enabled: true is recognised but not offered yet: "},
      {R"({"csv_monitor": {"enabled": true}})",
       "csv_monitor.enabled: true is recognised but not offered yet: "},
      {R"({"fp16": {"fp16_master_weights_and_grads": true}})",
       "fp16.fp16_master_weights_and_grads: true is recognised but not offered yet: "},
      {R"({"ullage": {"host_memory": 38e9}})",
       "ullage.host_memory: 38000000000 is recognised but not offered yet: "},
      {R"({"ullage": {"reduce": "at_boundary"}})",
       "ullage.reduce: \"at_boundary\" is recognised but not offered yet: "},
  });
}

TEST(NotOffered, WhatWouldChangeTheResultOrTheModel) {
  ExpectRefusals({
      {R"({"gradient_allreduce_op": "sum"})", "gradient_allreduce_op: \"sum\" is recognised but "},
      {R"({"sparse_gradients": true})", "sparse_gradients: true is recognised but not offered: "},
      {R"({"managed_gradient_accumulation": false})",
       "managed_gradient_accumulation: false is recognised but not offered: "},
      {R"({"sequence_parallel_size": 2})", "sequence_parallel_size: 2 is recognised but "},
      {R"({"amp": {"enabled": true, "opt_level": "O1"}})", "amp: a section is recognised but "},
      {R"({"torch_autocast": {"enabled": true, "dtype": "bfloat16"}})",
       "torch_autocast.enabled: true is recognised but not offered: "},
      {R"({"fp16": {"enabled": true, "auto_cast": true}})", "fp16.auto_cast: true is recognised "},
      {R"({"bf16": {"enabled": true, "check_grad_overflow": false}})",
       "bf16.check_grad_overflow: false is recognised but not offered: "},
      {R"({"data_types": {"grad_accum_dtype": "bf16"}})",
       "data_types.grad_accum_dtype: \"bf16\" is recognised but not offered: gradients are "},
      {R"({"data_types": {"buffer_dtype": "bf16"}})",
       "data_types.buffer_dtype: \"bf16\" is recognised but not offered: buffers keep "},
      {R"({"zero_optimization": {"zero_quantized_gradients": true}})",
       "zero_optimization.zero_quantized_gradients: true is recognised but not offered: "},
      {R"({"zero_optimization": {"zero_hpz_partition_size": 8}})",
       "zero_optimization.zero_hpz_partition_size: 8 is recognised but not offered: "},
      {R"({"zero_optimization": {"mics_shard_size": 4}})",
       "zero_optimization.mics_shard_size: 4 is recognised but not offered: "},
      {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"super_offload": true}}})",
       "zero_optimization.offload_optimizer.super_offload: true is recognised but not offered: "},
      {R"({"zero_optimization": {"ignore_unused_parameters": false}})",
       "zero_optimization.ignore_unused_parameters: false is recognised but not offered: "},
      {R"({"zero_optimization": {"stage3_model_persistence_threshold": 1e6}})",
       "zero_optimization.stage3_model_persistence_threshold: 1000000 is recognised but "},
      {R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})",
       "zero_optimization.zenflow: a section is recognised but not offered: "},
      {R"({"compile": {"deepcompile": true}})", "compile.deepcompile: true is recognised but "},
      {R"({"autotuning": {"enabled": true}})", "autotuning: a section is recognised but "},
      {R"({"pipeline": {"stages": 2}})", "pipeline: a section is recognised but not offered: "},
      {R"({"tensor_parallel": {"autotp_size": 4}})", "tensor_parallel.autotp_size: 4 is "},
      {R"({"compression_training": {"weight_quantization": {"shared_parameters":
           {"enabled": true}}}})",
       "compression_training: a section is recognised but not offered: "},
      {R"({"optimizer": {"type": "AdamW", "params": {"amsgrad": true}}})",
       "optimizer.params.amsgrad: true is recognised but not offered: "},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1, 2]}}})",
       "scheduler.params.warmup_max_lr: [1,2]: one value for each parameter group is not offered"},
  });
}

TEST(NotOffered, IsAcceptedWhenDisabledInTheFile) {
  for (const char* text : {
           R"({"elasticity": {"enabled": false, "max_train_batch_size": 2000}})",
           R"({"autotuning": {"enabled": false}})",
           R"({"amp": {"enabled": false, "opt_level": "O1"}})",
           R"({"compile": {"deepcompile": false}})",
           R"({"compression_training": {"weight_quantization": {"shared_parameters":
               {"enabled": false}}, "sparse_pruning": {"shared_parameters": {"enabled": false}}}})",
           R"({"zero_optimization": {"offload_param": {"device": "none", "nvme_path": null},
               "offload_optimizer": null, "zenflow": null, "mics_shard_size": -1,
               "zero_hpz_partition_size": 1, "cpu_offload": false,
               "stage3_model_persistence_threshold": 9223372036854775807}})",
           R"({"activation_checkpointing": {"partition_activations": false,
               "number_checkpoints": null, "cpu_checkpointing": false}})",
           R"({"fp16": {"enabled": false, "auto_cast": false}})",
           R"({"data_types": {"grad_accum_dtype": "torch.float32", "buffer_dtype": null}})",
           R"({"gradient_allreduce_op": "mean", "sparse_gradients": false,
               "sequence_parallel_size": 1})",
           R"({"ullage": {"device_memory": null, "disk": null, "reduce": "exact"}})",
           R"({"checkpoint": {"load_universal": false, "use_node_local_storage": false}})",
           R"({"datastates_ckpt": false, "nebula": {"enabled": false}})",
       }) {
    EXPECT_NO_THROW(Settings::FromText(text)) << text;
  }
}

TEST(CommunicationDataType, TheModelsOwnIsHonoured) {
  EXPECT_TRUE(
      NoEffect(R"({"bf16": {"enabled": true}, "communication_data_type": "bf16"})").empty());
  EXPECT_TRUE(NoEffect(R"({"communication_data_type": "fp32"})").empty());
  EXPECT_TRUE(NoEffect(R"({"communication_data_type": null})").empty());
}

TEST(CommunicationDataType, Fp32IsWhatTheSumIsIn) {
  EXPECT_EQ(NoEffect(R"({"bf16": {"enabled": true}, "communication_data_type": "fp32"})"),
            Lines{"communication_data_type: no effect, because bf16 gradients lose nothing on "
                  "their way in bf16, and are summed in fp32"});
}

TEST(CommunicationDataType, ANarrowerOneIsNotOffered) {
  ExpectRefusals({{R"({"communication_data_type": "fp16"})",
                   "communication_data_type: \"fp16\" is recognised but not offered: fp32 "
                   "gradients are exchanged without rounding them further"}});
}

}  // namespace
}  // namespace ullage::config
