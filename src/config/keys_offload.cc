// The table of keys: the offload sections of zero_optimization, aio and activation_checkpointing.
#include "config/key_table.h"

namespace ullage::config {
namespace {

using enum Standing;
using enum ValueKind;

constexpr std::string_view kStateDevice = "zero_optimization.offload_optimizer.device";
constexpr std::string_view kParamDevice = "zero_optimization.offload_param.device";

constexpr std::string_view kNoWeightsOnDisk = "weights are not moved to disk";
constexpr std::string_view kDiskOverlaps =
    "state on disk is always read ahead of its update and written behind it";
constexpr std::string_view kDiskRequests = "the engine chooses size and number of disk requests";
constexpr std::string_view kPlannedBuffers = "buffers have the number and size that the plan says";

constexpr KeyInfo kKeys[] = {
    {.path = "zero_optimization.offload_optimizer", .nullable = true},
    {.path = kStateDevice, .kind = kString, .words = "none|cpu|nvme"},
    {.path = "zero_optimization.offload_optimizer.pin_memory", .kind = kBool},
    {.path = "zero_optimization.offload_optimizer.ratio", .kind = kNumber, .min = 0, .max = 1},
    {.path = "zero_optimization.offload_optimizer.nvme_path", .kind = kString, .nullable = true},
    {.path = "zero_optimization.offload_optimizer.buffer_count",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 0,
     .reason = kPlannedBuffers,
     .detail_of = kStateDevice},
    {.path = "zero_optimization.offload_optimizer.pipeline_read",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = kDiskOverlaps,
     .detail_of = kStateDevice},
    {.path = "zero_optimization.offload_optimizer.pipeline_write",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = kDiskOverlaps,
     .detail_of = kStateDevice},
    {.path = "zero_optimization.offload_optimizer.fast_init",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "moments start as zeros, which the file holds without being written",
     .detail_of = kStateDevice},
    {.path = "zero_optimization.offload_optimizer.super_offload",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = "no update is begun that may have to be taken back"},
    {.path = "zero_optimization.offload_optimizer.cpuadam_cores_perc",
     .standing = kNoEffect,
     .kind = kNumber,
     .min = 0,
     .max = 1,
     .reason = "the engine uses the cores that it may use",
     .detail_of = kStateDevice},

    {.path = "zero_optimization.offload_param", .nullable = true},
    {.path = kParamDevice, .kind = kString, .words = "none|cpu|nvme"},
    {.path = "zero_optimization.offload_param.pin_memory", .kind = kBool},
    {.path = "zero_optimization.offload_param.nvme_path",
     .standing = kNoEffect,
     .kind = kString,
     .nullable = true,
     .reason = kNoWeightsOnDisk,
     .detail_of = kParamDevice},
    {.path = "zero_optimization.offload_param.buffer_count",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 0,
     .reason = kPlannedBuffers,
     .detail_of = kParamDevice},
    {.path = "zero_optimization.offload_param.buffer_size",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 0,
     .reason = kPlannedBuffers,
     .detail_of = kParamDevice},
    {.path = "zero_optimization.offload_param.max_in_cpu",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 0,
     .reason = kNoWeightsOnDisk,
     .detail_of = kParamDevice},

    // The old names of the sections; the reader restates them.
    {.path = "zero_optimization.cpu_offload", .kind = kBool, .nullable = true},
    {.path = "zero_optimization.cpu_offload_param", .kind = kBool, .nullable = true},
    {.path = "zero_optimization.cpu_offload_use_pin_memory",
     .standing = kNoEffect,
     .kind = kBool,
     .nullable = true,
     .reason = "DeepSpeed ignores it as well; pin_memory stands in the offload sections"},

    {.path = "aio"},
    {.path = "aio.block_size",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 1,
     .reason = kDiskRequests},
    {.path = "aio.queue_depth",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 1,
     .reason = kDiskRequests},
    {.path = "aio.intra_op_parallelism",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 1,
     .reason = kDiskRequests},
    {.path = "aio.single_submit", .standing = kNoEffect, .kind = kBool, .reason = kDiskRequests},
    {.path = "aio.overlap_events", .standing = kNoEffect, .kind = kBool, .reason = kDiskRequests},
    {.path = "aio.use_gds", .standing = kNoEffect, .kind = kBool, .reason = kDiskRequests},

    // The section as such turns recompute on.
    {.path = "activation_checkpointing"},
    {.path = "activation_checkpointing.partition_activations",
     .standing = kNotOfferedYet,
     .kind = kBool,
     .accepted = "false",
     .reason = "the input of each block stays whole on the rank that made it"},
    {.path = "activation_checkpointing.cpu_checkpointing",
     .standing = kNotOfferedYet,
     .kind = kBool,
     .accepted = "false",
     .reason = "the input of each block stays on its device"},
    {.path = "activation_checkpointing.number_checkpoints",
     .standing = kNoEffect,
     .kind = kInteger,
     .min = 0,
     .nullable = true,
     .reason = "every block of the model is recomputed, however many there are"},
    {.path = "activation_checkpointing.contiguous_memory_optimization",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "it arranges activations that are split over ranks, and none are"},
    {.path = "activation_checkpointing.profile",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "wall_clock_breakdown shows the time of each phase"},
    {.path = "activation_checkpointing.synchronize_checkpoint_boundary",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "nothing waits for the device between blocks, and no result depends on it"},
};

}  // namespace

std::span<const KeyInfo> OffloadKeys() {
  return kKeys;
}

}  // namespace ullage::config
