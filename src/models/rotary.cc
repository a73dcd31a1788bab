#include "models/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <numbers>

#include "models/json_fields.h"
#include "torchx/stand_in.h"
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

constexpr std::int64_t kMostPositions = std::int64_t{1} << 24;

// x * cos + rotate(x) * sin * direction, where rotate gives (-second half, first half).
at::Tensor Turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int direction,
                std::int64_t size, std::int64_t width) {
  const std::int64_t half = size / 2;
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = width;
  at::Tensor result = at::empty(sizes, x.options());
  at::Tensor turned = result.slice(-1, 0, size);
  const at::Tensor source = x.slice(-1, 0, size);
  at::mul_out(turned, source, cos);
  const at::Tensor half_sin = sin.slice(-1, 0, half);
  turned.slice(-1, 0, half).addcmul_(source.slice(-1, half, size), half_sin, -direction);
  turned.slice(-1, half, size).addcmul_(source.slice(-1, 0, half), half_sin, direction);
  if (width > size) result.slice(-1, size, width).zero_();
  return result;
}

class RotaryFunction final : public torch::autograd::Function<RotaryFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cos, const at::Tensor& sin, std::int64_t width) {
    context->save_for_backward({cos, sin});
    context->saved_data["size"] = x.size(-1);
    return Turn(x, cos, sin, 1, x.size(-1), width);
  }

  // The inverse of a turn is the turn back, and so is its transpose.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::int64_t size = context->saved_data["size"].toInt();
    return {Turn(gradients[0], saved[0], saved[1], -1, size, size), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

[[noreturn]] void RefuseScaling(const JsonFields& fields, const char* key) {
  throw UnsupportedError(fields.Describe(key) + " is not offered",
                         "rope_type \"default\", \"linear\" and \"llama3\" are offered");
}

}  // namespace

RotaryConfig ReadRotaryConfig(const nlohmann::json& object, const std::string& source,
                              std::int64_t head_dim, std::int64_t max_position_embeddings) {
  const JsonFields top(object, source);
  RotaryConfig config;
  config.head_dim = head_dim;
  constexpr double kHighest = 1e15;
  config.theta = top.Number("rope_theta", config.theta, 1, kHighest);
  config.original_positions =
      top.Integer("original_max_position_embeddings", max_position_embeddings, 1, kMostPositions);
  if (top.Number("partial_rotary_factor", 1, 0, kHighest) != 1) {
    throw UnsupportedError(top.Describe("partial_rotary_factor") + " is not offered",
                           "only whole heads are turned");
  }
  const char* key = top.Find("rope_scaling") != nullptr && !top.Find("rope_scaling")->empty()
                        ? "rope_scaling"
                        : "rope_parameters";
  const nlohmann::json* parameters = top.Find(key);
  if (parameters == nullptr) return config;
  if (!parameters->is_object()) top.Fail(key, "an object or null");

  const JsonFields fields(*parameters, source + ": " + key);
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    if (fields.Find(layers) == nullptr) continue;
    throw UnsupportedError(fields.Describe(layers) + " is not offered",
                           "one kind of rotary embedding for all layers is offered");
  }
  config.theta = fields.Number("rope_theta", config.theta, 1, kHighest);
  if (fields.Number("partial_rotary_factor", 1, 0, kHighest) != 1) {
    throw UnsupportedError(fields.Describe("partial_rotary_factor") + " is not offered",
                           "only whole heads are turned");
  }
  const char* type_key = fields.Find("rope_type") == nullptr ? "type" : "rope_type";
  const std::string type = fields.String(type_key, "default");
  if (type == "default") return config;
  if (type != "linear" && type != "llama3") RefuseScaling(fields, type_key);

  const auto positive = [&](const char* name) {
    if (fields.Find(name) == nullptr) fields.Fail(name, "a number above 0");
    return fields.Number(name, 0, std::numeric_limits<double>::min(), kHighest);
  };
  config.scaling =
      type == "linear" ? RotaryConfig::Scaling::kLinear : RotaryConfig::Scaling::kLlama3;
  config.factor = positive("factor");
  if (config.scaling == RotaryConfig::Scaling::kLinear) return config;
  config.low_freq_factor = positive("low_freq_factor");
  config.high_freq_factor = positive("high_freq_factor");
  if (config.high_freq_factor == config.low_freq_factor) {
    fields.Fail("high_freq_factor", "another number than low_freq_factor");
  }
  if (top.Find("original_max_position_embeddings") == nullptr) {
    config.original_positions = fields.Integer("original_max_position_embeddings",
                                               config.original_positions, 1, kMostPositions);
  }
  return config;
}

at::Tensor InverseFrequencies(const RotaryConfig& config) {
  // The operators of transformers, one by one, for the sake of their bits.
  const auto dim = static_cast<double>(config.head_dim);
  at::Tensor frequencies =
      at::pow(config.theta, at::arange(0, config.head_dim, 2, at::kFloat) / dim).reciprocal();
  if (config.scaling == RotaryConfig::Scaling::kNone) return frequencies;
  if (config.scaling == RotaryConfig::Scaling::kLinear) return frequencies / config.factor;

  const auto old_length = static_cast<double>(config.original_positions);
  const double longest = old_length / config.low_freq_factor;
  const double shortest = old_length / config.high_freq_factor;
  const at::Tensor wavelengths = (2 * std::numbers::pi) / frequencies;
  const at::Tensor scaled =
      at::where(wavelengths > longest, frequencies / config.factor, frequencies);
  const at::Tensor smooth = (old_length / wavelengths - config.low_freq_factor) /
                            (config.high_freq_factor - config.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * scaled / config.factor + smooth * scaled;
  const at::Tensor between = (wavelengths >= shortest).logical_and(wavelengths <= longest);
  return at::where(between, smoothed, scaled);
}

RotaryEmbedding::RotaryEmbedding(const RotaryConfig& config)
    : inverse_frequencies_(register_buffer("inv_freq", InverseFrequencies(config))),
      on_device_(inverse_frequencies_) {}

RotaryTables RotaryEmbedding::operator()(const at::Tensor& position_ids, std::int64_t length,
                                         c10::Device device, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (on_device_.device() != device) {
    // Meta that stands for the CPU has no copy.
    on_device_ = device.is_meta() && torchx::ComputesOnCpu(device)
                     ? torchx::View(nullptr, inverse_frequencies_.sizes(), at::kFloat, device)
                     : inverse_frequencies_.to(device);
  }
  at::Tensor positions;  // [1 or B, S, 1]
  if (position_ids.defined()) {
    positions = position_ids.to(at::kFloat).unsqueeze(-1);
  } else {
    positions = at::arange(length, at::TensorOptions(device).dtype(at::kFloat)).view({1, -1, 1});
  }
  const at::Tensor half = positions * on_device_;
  const at::Tensor angles = at::cat({half, half}, -1).unsqueeze(2);
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTables& tables, std::int64_t width) {
  return RotaryFunction::apply(x, tables.cos, tables.sin, width);
}

}  // namespace ullage::models
