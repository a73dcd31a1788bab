// The table of keys: monitors, profilers, checkpoint writers, and the features that change how a
// model is trained or split; most are not offered.
#include "config/key_table.h"

namespace ullage::config {
namespace {

using enum Standing;
using enum ValueKind;

constexpr KeyInfo Switch(std::string_view path, std::string_view reason,
                         Standing standing = kNotOffered) {
  return {.path = path, .standing = standing, .kind = kBool, .accepted = "false", .reason = reason};
}

constexpr KeyInfo Inert(std::string_view path, ValueKind kind = kAnything) {
  return {.path = path, .standing = kInert, .kind = kind};
}

constexpr KeyInfo Refused(std::string_view path, std::string_view reason) {
  return {
      .path = path, .standing = kNotOffered, .kind = kOpaque, .nullable = true, .reason = reason};
}

constexpr std::string_view kMetrics = "metrics.jsonl holds what happens in a run";
constexpr std::string_view kSafetensors = "weights are written as safetensors, atomically";

constexpr KeyInfo kKeys[] = {
    {.path = "tensorboard"},
    Switch("tensorboard.enabled", kMetrics, kNotOfferedYet),
    Inert("tensorboard.output_path", kString),
    Inert("tensorboard.job_name", kString),
    {.path = "csv_monitor"},
    Switch("csv_monitor.enabled", kMetrics, kNotOfferedYet),
    Inert("csv_monitor.output_path", kString),
    Inert("csv_monitor.job_name", kString),
    {.path = "wandb"},
    Switch("wandb.enabled", kMetrics),
    Inert("wandb.group"),
    Inert("wandb.team"),
    Inert("wandb.project"),
    {.path = "comet"},
    Switch("comet.enabled", kMetrics),
    Inert("comet.samples_log_interval"),
    Inert("comet.project"),
    Inert("comet.workspace"),
    Inert("comet.api_key"),
    Inert("comet.experiment_name"),
    Inert("comet.experiment_key"),
    Inert("comet.online"),
    Inert("comet.mode"),

    {.path = "timers"},
    {.path = "timers.throughput"},
    {.path = "timers.throughput.enabled",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "tokens/s are always counted, at no cost"},
    {.path = "timers.throughput.synchronized",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "tokens/s are counted without stopping the device"},
    {.path = "comms_logger"},
    Switch("comms_logger.enabled", "wall_clock_breakdown shows the time of the exchanges"),
    Inert("comms_logger.verbose"),
    Inert("comms_logger.prof_all"),
    Inert("comms_logger.debug"),
    Inert("comms_logger.prof_ops"),
    {.path = "flops_profiler"},
    Switch("flops_profiler.enabled", "wall_clock_breakdown and memory_breakdown show the phases"),
    Inert("flops_profiler.recompute_fwd_factor"),
    Inert("flops_profiler.profile_step"),
    Inert("flops_profiler.module_depth"),
    Inert("flops_profiler.top_modules"),
    Inert("flops_profiler.detailed"),
    Inert("flops_profiler.output_file"),

    {.path = "checkpoint"},
    {.path = "checkpoint.tag_validation",
     .standing = kNoEffect,
     .kind = kString,
     .words = "Warn|Ignore|Fail",
     .reason = "ranks always agree on the tag before anything is written"},
    {.path = "checkpoint.load_universal", .kind = kBool},
    Switch("checkpoint.use_node_local_storage", "one directory holds the output", kNotOfferedYet),
    {.path = "checkpoint.parallel_write"},
    Switch("checkpoint.parallel_write.pipeline_stage", "models are not cut into pipeline stages"),
    {.path = "checkpoint.checkpoint_serialization",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = kSafetensors},
    {.path = "checkpoint.writer", .nullable = true},
    {.path = "checkpoint.writer.type",
     .standing = kNoEffect,
     .kind = kString,
     .reason = kSafetensors},
    Switch("checkpoint.writer.decoupled", "no second process writes", kNotOfferedYet),
    {.path = "checkpoint.writer.io_buffer_size",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 1,
     .reason = kSafetensors},
    {.path = "checkpoint.writer.io_buffer_double",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = kSafetensors},
    {.path = "checkpoint.writer.show_statistics",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = kSafetensors},
    {.path = "checkpoint.writer.data_parallel",
     .standing = kNoEffect,
     .kind = kString,
     .nullable = true,
     .reason = kSafetensors},
    {.path = "checkpoint.writer.io_multiplier",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 1,
     .reason = kSafetensors},
    Refused("nebula", kSafetensors),
    Refused("datastates_ckpt", kSafetensors),

    {.path = "elasticity"},
    Switch("elasticity.enabled", "the batch size is what the file says"),
    Inert("elasticity.max_train_batch_size"),
    Inert("elasticity.micro_batch_sizes"),
    Inert("elasticity.min_gpus"),
    Inert("elasticity.max_gpus"),
    Inert("elasticity.min_time"),
    Inert("elasticity.prefer_larger_batch"),
    Inert("elasticity.ignore_non_elastic_batch_info"),
    Inert("elasticity.version"),
    Inert("elasticity.model_parallel_size"),
    Inert("elasticity.num_gpus_per_node"),

    {.path = "compile"},
    Switch("compile.deepcompile", "the model runs as it is, without a compiler"),
    Inert("compile.free_activation"),
    Inert("compile.free_activation_threshold"),
    Inert("compile.offload_activation"),
    Inert("compile.offload_activation_pin_memory"),
    Inert("compile.offload_opt_states"),
    Inert("compile.double_buffer"),
    Inert("compile.symmetric_memory"),
    Inert("compile.debug_log"),
    Inert("compile.offload_parameters"),
    Inert("compile.sync_before_reduce"),
    Inert("compile.sync_after_reduce"),
    Inert("compile.sync_before_allgather"),
    Inert("compile.sync_after_allgather"),
    Inert("compile.keep_int_input_tensors"),
    Inert("compile.keep_all_input_tensors"),
    {.path = "compile.passes",
     .standing = kNotOffered,
     .kind = kOpaque,
     .nullable = true,
     .reason = "the model runs as it is, without a compiler"},

    {.path = "progressive_layer_drop"},
    Switch("progressive_layer_drop.enabled", "the model is not touched"),
    Inert("progressive_layer_drop.theta"),
    Inert("progressive_layer_drop.gamma"),
    {.path = "eigenvalue"},
    Switch("eigenvalue.enabled", "it serves quantised training, which is not offered"),
    Inert("eigenvalue.verbose"),
    Inert("eigenvalue.max_iter"),
    Inert("eigenvalue.tol"),
    Inert("eigenvalue.stability"),
    Inert("eigenvalue.gas_boundary_resolution"),
    Inert("eigenvalue.layer_name"),
    Inert("eigenvalue.layer_num"),
    {.path = "hybrid_engine"},
    Switch("hybrid_engine.enabled", "the engine trains; generation is the model's own"),
    Inert("hybrid_engine.max_out_tokens"),
    Inert("hybrid_engine.inference_tp_size"),
    Inert("hybrid_engine.release_inference_cache"),
    Inert("hybrid_engine.pin_parameters"),
    Inert("hybrid_engine.tp_gather_partition_size"),
    Inert("hybrid_engine.enable_cuda_graph"),

    {.path = "tensor_parallel"},
    {.path = "tensor_parallel.autotp_size",
     .standing = kNotOffered,
     .kind = kInteger,
     .min = 0,
     .accepted = "0",
     .reason = "parameters are split over ranks, operators are not"},
    Inert("tensor_parallel.dtype"),
    Inert("tensor_parallel.tp_overlap_comm"),
    Inert("tensor_parallel.tensor_parallel"),
    Inert("tensor_parallel.tp"),
    Inert("tensor_parallel.injection_policy_tuple"),
    Inert("tensor_parallel.partition_config"),
    Inert("tensor_parallel.preset_model"),
    Inert("tensor_parallel.keep_module_on_host"),
    Inert("tensor_parallel.replace_with_kernel_inject"),
    Inert("tensor_parallel.kernel_inject"),

    Refused("autotuning", "ullage plan says what fits"),
    Refused("pipeline", "models are not cut into pipeline stages"),
    Refused("expert_parallel", "experts are parameters like others"),
    Refused("sparse_attention", "attention is the model's own"),
    Refused("compression_training", "weights are neither pruned nor quantised"),
    Refused("weight_quantization", "weights are neither pruned nor quantised"),
    Refused("quantize_training", "weights are neither pruned nor quantised"),
    Refused("curriculum_learning", "records are drawn in a fixed shuffled order"),
    Refused("data_efficiency", "records are drawn in a fixed shuffled order"),
};

}  // namespace

std::span<const KeyInfo> ToolKeys() {
  return kKeys;
}

}  // namespace ullage::config
