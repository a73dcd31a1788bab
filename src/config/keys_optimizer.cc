// The table of keys: optimizer, with the parameters of each type that is offered.
#include "config/key_table.h"

namespace ullage::config {
namespace {

using enum Standing;
using enum ValueKind;

constexpr std::string_view kOnePass = "the update is one pass over each slice in any case";
constexpr std::string_view kNoGraph = "the update is not part of an autograd or CUDA graph";

constexpr KeyInfo kKeys[] = {
    {.path = "optimizer"},
    {.path = "optimizer.type", .kind = kString},
    {.path = "optimizer.params"},
    {.path = "optimizer.legacy_fusion", .standing = kNoEffect, .kind = kBool, .reason = kOnePass},

    {.path = "optimizer.params.lr", .kind = kNumber, .min = 0, .auto_is = "learning_rate"},
    {.path = "optimizer.params.weight_decay",
     .kind = kNumber,
     .min = 0,
     .auto_is = "weight_decay of its arguments"},
    {.path = "optimizer.params.foreach",
     .standing = kNoEffect,
     .kind = kBool,
     .nullable = true,
     .reason = kOnePass},
    {.path = "optimizer.params.fused",
     .standing = kNoEffect,
     .kind = kBool,
     .nullable = true,
     .reason = kOnePass},
    {.path = "optimizer.params.maximize",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = "the loss is minimised; negate it instead"},
    {.path = "optimizer.params.differentiable",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = kNoGraph},

    {.path = "optimizer.params.betas",
     .kind = kBetas,
     .auto_is = "adam_beta1 and adam_beta2",
     .scope = "Adam"},
    {.path = "optimizer.params.eps",
     .kind = kNumber,
     .min = 0,
     .auto_is = "adam_epsilon",
     .scope = "Adam"},
    {.path = "optimizer.params.bias_correction", .kind = kBool, .scope = "Adam"},
    {.path = "optimizer.params.adam_w_mode", .kind = kBool, .scope = "Adam"},
    {.path = "optimizer.params.adamw_mode",
     .kind = kBool,
     .alias_of = "optimizer.params.adam_w_mode",
     .scope = "Adam"},
    {.path = "optimizer.params.amsgrad",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = "it needs a third moment",
     .scope = "Adam"},
    {.path = "optimizer.params.torch_adam",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "there is one implementation of Adam",
     .scope = "Adam"},
    {.path = "optimizer.params.capturable",
     .standing = kNotOffered,
     .kind = kBool,
     .accepted = "false",
     .reason = kNoGraph,
     .scope = "Adam"},
    {.path = "optimizer.params.set_grad_none",
     .standing = kNoEffect,
     .kind = kBool,
     .reason = "gradients live in the engine, not in the parameters",
     .scope = "Adam"},
    {.path = "optimizer.params.fp32_optimizer_states",
     .standing = kNotOfferedYet,
     .kind = kBool,
     .accepted = "true",
     .reason = "moments are fp32",
     .scope = "Adam"},

    {.path = "optimizer.params.momentum", .kind = kNumber, .min = 0, .scope = "SGD"},
    {.path = "optimizer.params.dampening", .kind = kNumber, .scope = "SGD"},
    {.path = "optimizer.params.nesterov", .kind = kBool, .scope = "SGD"},
};

}  // namespace

std::span<const KeyInfo> OptimizerKeys() {
  return kKeys;
}

}  // namespace ullage::config
