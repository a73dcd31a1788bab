// The frozen list: every key that a settings file may hold, and what becomes of it. Adding a line
// is a feature; removing or changing one breaks files that worked.
#pragma once

namespace ullage::config {

inline constexpr char kAcceptedKeys[] = R"(
train_batch_size: honoured
train_micro_batch_size_per_gpu: honoured
gradient_accumulation_steps: honoured
steps_per_print: honoured
gradient_clipping: honoured
ignored_parameters: honoured
dataloader_drop_last: honoured
wall_clock_breakdown: honoured
memory_breakdown: honoured
communication_data_type: honoured
seq_parallel_communication_data_type: no effect
prescale_gradients: no effect
gradient_predivide_factor: no effect
gradient_allreduce_op: not offered
sparse_gradients: not offered
managed_gradient_accumulation: not offered
zero_allow_untested_optimizer: no effect
zero_force_ds_cpu_optimizer: no effect
dump_state: no effect
disable_allgather: no effect
allgather_size: no effect
graph_harvesting: no effect
vocabulary_size: no effect
log_level: no effect
data_parallel_size: no effect
sequence_parallel_size: not offered
use_data_before_expert_parallelism: no effect
fp16: honoured
fp16.enabled: honoured
fp16.auto_cast: not offered
fp16.loss_scale: honoured
fp16.initial_scale_power: honoured
fp16.loss_scale_window: honoured
fp16.hysteresis: honoured
fp16.consecutive_hysteresis: honoured
fp16.min_loss_scale: honoured
fp16.fp16_master_weights_and_grads: not offered yet
bf16: honoured
bfloat16: honoured
bf16.enabled: honoured
bf16.immediate_grad_update: no effect
bf16.check_grad_overflow: not offered
bf16.bf16_master_weights_and_grads: not offered yet
bf16.bf16_optimizer_states: not offered yet
data_types: honoured
data_types.grad_accum_dtype: honoured
data_types.param_dtype: honoured
data_types.buffer_dtype: not offered
torch_autocast: honoured
torch_autocast.enabled: not offered
torch_autocast.dtype: inert
torch_autocast.lower_precision_safe_modules: inert
amp: not offered
zero_optimization: honoured
zero_optimization.stage: honoured
zero_optimization.reduce_bucket_size: honoured
zero_optimization.allgather_bucket_size: no effect
zero_optimization.sub_group_size: no effect
zero_optimization.stage3_prefetch_bucket_size: honoured
zero_optimization.prefetch_bucket_size: honoured
zero_optimization.stage3_param_persistence_threshold: honoured
zero_optimization.param_persistence_threshold: honoured
zero_optimization.stage3_model_persistence_threshold: not offered
zero_optimization.model_persistence_threshold: not offered
zero_optimization.contiguous_gradients: no effect
zero_optimization.reduce_scatter: no effect
zero_optimization.use_multi_rank_bucket_allreduce: no effect
zero_optimization.allgather_partitions: no effect
zero_optimization.overlap_comm: no effect
zero_optimization.elastic_checkpoint: no effect
zero_optimization.stage3_max_live_parameters: no effect
zero_optimization.max_live_parameters: no effect
zero_optimization.stage3_max_reuse_distance: no effect
zero_optimization.max_reuse_distance: no effect
zero_optimization.stage3_gather_16bit_weights_on_model_save: no effect
zero_optimization.gather_16bit_weights_on_model_save: no effect
zero_optimization.stage3_gather_fp16_weights_on_model_save: no effect
zero_optimization.stage3_module_granularity_threshold: no effect
zero_optimization.module_granularity_threshold: no effect
zero_optimization.leaf_module: honoured
zero_optimization.leaf_module.classes: no effect
zero_optimization.leaf_module.names: no effect
zero_optimization.leaf_module.name_suffixes: no effect
zero_optimization.stage3_use_all_reduce_for_fetch_params: no effect
zero_optimization.use_all_reduce_for_fetch_params: no effect
zero_optimization.stage3_allgather_sequential: no effect
zero_optimization.allgather_sequential: no effect
zero_optimization.round_robin_gradients: no effect
zero_optimization.memory_efficient_linear: no effect
zero_optimization.pipeline_loading_checkpoint: no effect
zero_optimization.override_module_apply: no effect
zero_optimization.log_trace_cache_warnings: no effect
zero_optimization.enable_sanity_checks: no effect
zero_optimization.ignore_unused_parameters: not offered
zero_optimization.load_from_fp32_weights: not offered
zero_optimization.legacy_stage1: not offered
zero_optimization.zero_hpz_partition_size: not offered
zero_optimization.zero_quantized_weights: not offered
zero_optimization.zero_quantized_nontrainable_weights: not offered
zero_optimization.zero_quantized_gradients: not offered
zero_optimization.zeropp_loco_param: not offered
zero_optimization.mics_shard_size: not offered
zero_optimization.mics_hierarchical_params_gather: not offered
zero_optimization.save_muon_momentum_buffer_in_memory: not offered
zero_optimization.zenflow: not offered
zero_optimization.offload_optimizer: honoured
zero_optimization.offload_optimizer.device: honoured
zero_optimization.offload_optimizer.nvme_path: honoured
zero_optimization.offload_optimizer.buffer_count: no effect
zero_optimization.offload_optimizer.pin_memory: honoured
zero_optimization.offload_optimizer.pipeline_read: no effect
zero_optimization.offload_optimizer.pipeline_write: no effect
zero_optimization.offload_optimizer.fast_init: no effect
zero_optimization.offload_optimizer.ratio: honoured
zero_optimization.offload_optimizer.super_offload: not offered
zero_optimization.offload_optimizer.cpuadam_cores_perc: no effect
zero_optimization.offload_param: honoured
zero_optimization.offload_param.device: honoured
zero_optimization.offload_param.nvme_path: no effect
zero_optimization.offload_param.buffer_count: no effect
zero_optimization.offload_param.buffer_size: no effect
zero_optimization.offload_param.max_in_cpu: no effect
zero_optimization.offload_param.pin_memory: honoured
zero_optimization.cpu_offload: honoured
zero_optimization.cpu_offload_param: honoured
zero_optimization.cpu_offload_use_pin_memory: no effect
aio: honoured
aio.block_size: no effect
aio.queue_depth: no effect
aio.intra_op_parallelism: no effect
aio.single_submit: no effect
aio.overlap_events: no effect
aio.use_gds: no effect
activation_checkpointing: honoured
activation_checkpointing.partition_activations: not offered yet
activation_checkpointing.number_checkpoints: no effect
activation_checkpointing.contiguous_memory_optimization: no effect
activation_checkpointing.cpu_checkpointing: not offered yet
activation_checkpointing.profile: no effect
activation_checkpointing.synchronize_checkpoint_boundary: no effect
optimizer: honoured
optimizer.type: honoured
optimizer.params: honoured
optimizer.legacy_fusion: no effect
optimizer.params.lr: honoured
optimizer.params.weight_decay: honoured
optimizer.params.foreach: no effect
optimizer.params.fused: no effect
optimizer.params.maximize: not offered
optimizer.params.differentiable: not offered
optimizer.params.betas: honoured (Adam)
optimizer.params.eps: honoured (Adam)
optimizer.params.bias_correction: honoured (Adam)
optimizer.params.adam_w_mode: honoured (Adam)
optimizer.params.adamw_mode: honoured (Adam)
optimizer.params.amsgrad: not offered (Adam)
optimizer.params.torch_adam: no effect (Adam)
optimizer.params.capturable: not offered (Adam)
optimizer.params.set_grad_none: no effect (Adam)
optimizer.params.fp32_optimizer_states: not offered yet (Adam)
optimizer.params.momentum: honoured (SGD)
optimizer.params.dampening: honoured (SGD)
optimizer.params.nesterov: honoured (SGD)
scheduler: honoured
scheduler.type: honoured
scheduler.params: honoured
scheduler.params.warmup_min_lr: honoured (WarmupLR)
scheduler.params.warmup_max_lr: honoured (WarmupLR)
scheduler.params.warmup_num_steps: honoured (WarmupLR)
scheduler.params.warmup_type: honoured (WarmupLR)
scheduler.params.last_batch_iteration: not offered (WarmupLR)
scheduler.params.total_num_steps: honoured (WarmupDecayLR)
scheduler.params.warmup_min_lr: honoured (WarmupDecayLR)
scheduler.params.warmup_max_lr: honoured (WarmupDecayLR)
scheduler.params.warmup_num_steps: honoured (WarmupDecayLR)
scheduler.params.warmup_type: honoured (WarmupDecayLR)
scheduler.params.last_batch_iteration: not offered (WarmupDecayLR)
scheduler.params.total_num_steps: honoured (WarmupCosineLR)
scheduler.params.warmup_min_ratio: honoured (WarmupCosineLR)
scheduler.params.warmup_num_steps: honoured (WarmupCosineLR)
scheduler.params.cos_min_ratio: honoured (WarmupCosineLR)
scheduler.params.warmup_type: honoured (WarmupCosineLR)
scheduler.params.last_batch_iteration: not offered (WarmupCosineLR)
scheduler.params.cycle_min_lr: honoured (OneCycle)
scheduler.params.cycle_max_lr: honoured (OneCycle)
scheduler.params.decay_lr_rate: honoured (OneCycle)
scheduler.params.cycle_first_step_size: honoured (OneCycle)
scheduler.params.cycle_second_step_size: honoured (OneCycle)
scheduler.params.cycle_first_stair_count: honoured (OneCycle)
scheduler.params.cycle_second_stair_count: honoured (OneCycle)
scheduler.params.decay_step_size: honoured (OneCycle)
scheduler.params.cycle_momentum: honoured (OneCycle)
scheduler.params.cycle_min_mom: honoured (OneCycle)
scheduler.params.cycle_max_mom: honoured (OneCycle)
scheduler.params.decay_mom_rate: honoured (OneCycle)
scheduler.params.last_batch_iteration: not offered (OneCycle)
scheduler.params.lr_range_test_min_lr: honoured (LRRangeTest)
scheduler.params.lr_range_test_step_size: honoured (LRRangeTest)
scheduler.params.lr_range_test_step_rate: honoured (LRRangeTest)
scheduler.params.lr_range_test_staircase: honoured (LRRangeTest)
scheduler.params.last_batch_iteration: not offered (LRRangeTest)
tensorboard: honoured
tensorboard.enabled: not offered yet
tensorboard.output_path: inert
tensorboard.job_name: inert
csv_monitor: honoured
csv_monitor.enabled: not offered yet
csv_monitor.output_path: inert
csv_monitor.job_name: inert
wandb: honoured
wandb.enabled: not offered
wandb.group: inert
wandb.team: inert
wandb.project: inert
comet: honoured
comet.enabled: not offered
comet.samples_log_interval: inert
comet.project: inert
comet.workspace: inert
comet.api_key: inert
comet.experiment_name: inert
comet.experiment_key: inert
comet.online: inert
comet.mode: inert
timers: honoured
timers.throughput: honoured
timers.throughput.enabled: no effect
timers.throughput.synchronized: no effect
comms_logger: honoured
comms_logger.enabled: not offered
comms_logger.verbose: inert
comms_logger.prof_all: inert
comms_logger.debug: inert
comms_logger.prof_ops: inert
flops_profiler: honoured
flops_profiler.enabled: not offered
flops_profiler.recompute_fwd_factor: inert
flops_profiler.profile_step: inert
flops_profiler.module_depth: inert
flops_profiler.top_modules: inert
flops_profiler.detailed: inert
flops_profiler.output_file: inert
checkpoint: honoured
checkpoint.tag_validation: no effect
checkpoint.load_universal: honoured
checkpoint.use_node_local_storage: not offered yet
checkpoint.parallel_write: honoured
checkpoint.parallel_write.pipeline_stage: not offered
checkpoint.checkpoint_serialization: no effect
checkpoint.writer: honoured
checkpoint.writer.type: no effect
checkpoint.writer.decoupled: not offered yet
checkpoint.writer.io_buffer_size: no effect
checkpoint.writer.io_buffer_double: no effect
checkpoint.writer.show_statistics: no effect
checkpoint.writer.data_parallel: no effect
checkpoint.writer.io_multiplier: no effect
nebula: not offered
datastates_ckpt: not offered
elasticity: honoured
elasticity.enabled: not offered
elasticity.max_train_batch_size: inert
elasticity.micro_batch_sizes: inert
elasticity.min_gpus: inert
elasticity.max_gpus: inert
elasticity.min_time: inert
elasticity.prefer_larger_batch: inert
elasticity.ignore_non_elastic_batch_info: inert
elasticity.version: inert
elasticity.model_parallel_size: inert
elasticity.num_gpus_per_node: inert
compile: honoured
compile.deepcompile: not offered
compile.free_activation: inert
compile.free_activation_threshold: inert
compile.offload_activation: inert
compile.offload_activation_pin_memory: inert
compile.offload_opt_states: inert
compile.double_buffer: inert
compile.symmetric_memory: inert
compile.debug_log: inert
compile.offload_parameters: inert
compile.sync_before_reduce: inert
compile.sync_after_reduce: inert
compile.sync_before_allgather: inert
compile.sync_after_allgather: inert
compile.keep_int_input_tensors: inert
compile.keep_all_input_tensors: inert
compile.passes: not offered
progressive_layer_drop: honoured
progressive_layer_drop.enabled: not offered
progressive_layer_drop.theta: inert
progressive_layer_drop.gamma: inert
eigenvalue: honoured
eigenvalue.enabled: not offered
eigenvalue.verbose: inert
eigenvalue.max_iter: inert
eigenvalue.tol: inert
eigenvalue.stability: inert
eigenvalue.gas_boundary_resolution: inert
eigenvalue.layer_name: inert
eigenvalue.layer_num: inert
hybrid_engine: honoured
hybrid_engine.enabled: not offered
hybrid_engine.max_out_tokens: inert
hybrid_engine.inference_tp_size: inert
hybrid_engine.release_inference_cache: inert
hybrid_engine.pin_parameters: inert
hybrid_engine.tp_gather_partition_size: inert
hybrid_engine.enable_cuda_graph: inert
tensor_parallel: honoured
tensor_parallel.autotp_size: not offered
tensor_parallel.dtype: inert
tensor_parallel.tp_overlap_comm: inert
tensor_parallel.tensor_parallel: inert
tensor_parallel.tp: inert
tensor_parallel.injection_policy_tuple: inert
tensor_parallel.partition_config: inert
tensor_parallel.preset_model: inert
tensor_parallel.keep_module_on_host: inert
tensor_parallel.replace_with_kernel_inject: inert
tensor_parallel.kernel_inject: inert
autotuning: not offered
pipeline: not offered
expert_parallel: not offered
sparse_attention: not offered
compression_training: not offered
weight_quantization: not offered
quantize_training: not offered
curriculum_learning: not offered
data_efficiency: not offered
ullage: honoured
ullage.device_memory: honoured
ullage.host_memory: not offered yet
ullage.disk: honoured
ullage.disk.path: honoured
ullage.disk.limit: honoured
ullage.unit_size: honoured
ullage.timeout_seconds: honoured
ullage.reduce: not offered yet
ullage.recompute: honoured
ullage.cuda_graphs: honoured
ullage.no_decay: honoured
ullage.parameter_groups: honoured
ullage.parameter_groups[].pattern: honoured
ullage.parameter_groups[].lr_factor: honoured
ullage.parameter_groups[].lr: honoured
ullage.parameter_groups[].weight_decay: honoured
)";

}  // namespace ullage::config
