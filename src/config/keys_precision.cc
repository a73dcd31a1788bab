// The table of keys: fp16, bf16, data_types and the two kinds of autocast.
#include "config/key_table.h"

namespace ullage::config {
namespace {

using enum Standing;
using enum ValueKind;

constexpr KeyInfo kKeys[] = {
    {.path = "fp16"},
    {.path = "fp16.enabled", .kind = kBool, .auto_is = "whether fp16 was asked for"},
    {.path = "fp16.auto_cast",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = "inputs are handed to the model as they are; convert floating ones yourself"},
    {.path = "fp16.loss_scale", .kind = kNumber, .min = 0, .max = 0x1p127},
    {.path = "fp16.initial_scale_power", .kind = kInteger, .min = 1, .max = 127},
    {.path = "fp16.loss_scale_window", .kind = kInteger, .min = 1, .max = 0x1p31 - 1},
    {.path = "fp16.hysteresis", .kind = kInteger, .min = 1, .max = 0x1p31 - 1},
    {.path = "fp16.consecutive_hysteresis", .kind = kBool},
    {.path = "fp16.min_loss_scale", .kind = kInteger, .min = 1, .max = 0x1p53},
    {.path = "fp16.fp16_master_weights_and_grads",
     .standing = kNotOfferedYet,
     .kind = kBool,
     .accepted = "false",
     .reason = "master weights and accumulated gradients are fp32"},

    {.path = "bf16"},
    {.path = "bfloat16", .alias_of = "bf16"},
    {.path = "bf16.enabled", .kind = kBool, .auto_is = "whether bf16 was asked for"},
    {.path = "bf16.immediate_grad_update",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "each gradient is added to its fp32 accumulator as soon as it is produced"},
    {.path = "bf16.check_grad_overflow",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "true",
     .reason = "a step with inf or nan gradients is always skipped and reported"},
    {.path = "bf16.bf16_master_weights_and_grads",
     .standing = kNotOfferedYet,
     .kind = kBool,
     .accepted = "false",
     .reason = "master weights and accumulated gradients are fp32"},
    {.path = "bf16.bf16_optimizer_states",
     .standing = kNotOfferedYet,
     .kind = kBool,
     .accepted = "false",
     .reason = "moments are fp32"},

    {.path = "data_types"},
    {.path = "data_types.grad_accum_dtype", .kind = kDType, .nullable = true},
    {.path = "data_types.param_dtype", .kind = kDType, .nullable = true},
    {.path = "data_types.buffer_dtype",
     .standing = kNotOffered,
     .kind = kDType,
     .nullable = true,
     .reason = "buffers keep the dtype that the model gives them"},

    {.path = "torch_autocast"},
    {.path = "torch_autocast.enabled",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = "autocast keeps copies of the weights for backward; bf16 or fp16 here hand out "
               "16-bit weights instead"},
    {.path = "torch_autocast.dtype", .standing = kInert, .kind = kDType},
    {.path = "torch_autocast.lower_precision_safe_modules", .standing = kInert, .kind = kStrings},

    {.path = "amp",
     .standing = kNotOffered,
     .kind = kOpaque,
     .nullable = true,
     .reason = "Apex AMP wraps the optimizer; use bf16 or fp16",
     .auto_is = "whether Apex was asked for"},
};

}  // namespace

std::span<const KeyInfo> PrecisionKeys() {
  return kKeys;
}

}  // namespace ullage::config
