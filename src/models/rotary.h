// Rotary position embeddings: pairs of a head's elements turned by an angle that grows with the
// position.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace ullage::models {

// How the angles follow from the positions.
struct RotaryConfig {
  enum class Scaling : std::uint8_t { kNone, kLinear, kLlama3 };
  std::int64_t head_dim = 0;  // even
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;           // linear and llama3
  double low_freq_factor = 1;  // llama3, as are the rest
  double high_freq_factor = 4;
  std::int64_t original_positions = 0;
};

// From a config.json: rope_scaling or rope_parameters, and rope_theta inside of them or beside
// them. Throws ConfigError, and UnsupportedError naming a scaling that is not offered.
RotaryConfig ReadRotaryConfig(const nlohmann::json& object, const std::string& source,
                              std::int64_t head_dim, std::int64_t max_position_embeddings);

// Radians per position of each pair, fp32 on CPU [head_dim / 2], with the bits of transformers.
at::Tensor InverseFrequencies(const RotaryConfig& config);

// For a whole forward: cos and sin of the angles, each [1 or B, S, 1, head_dim], where the second
// half of the last dimension repeats the first.
struct RotaryTables {
  at::Tensor cos, sin;
};

// Holds the frequencies as the buffer "inv_freq", which files do not hold. It stays in fp32 and
// on the CPU with its values, whatever the module is moved to: 16-bit angles are wrong from the
// 257th position on, and a model built without memory needs them too.
class RotaryEmbedding final : public torch::nn::Module {
 public:
  explicit RotaryEmbedding(const RotaryConfig& config);

  // `position_ids` [B, S], any integers, or undefined for 0 to `length` - 1. Angles, cos and sin
  // are computed in fp32 on `device` and rounded to `dtype` last.
  RotaryTables operator()(const at::Tensor& position_ids, std::int64_t length, c10::Device device,
                          at::ScalarType dtype);

  void to(torch::Device, torch::Dtype, bool = false) override {}
  void to(torch::Dtype, bool = false) override {}
  void to(torch::Device, bool = false) override {}

 private:
  at::Tensor inverse_frequencies_;
  at::Tensor on_device_;  // the same, where it was used last
};

// Turns element i of each head together with element i + head_dim / 2. `x` [B, S, heads, head_dim];
// the result has a last dimension of `width` >= head_dim, its tail zero (attention kernels want
// multiples of 8). Differentiable in `x`; keeps nothing but the tables.
at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTables& tables, std::int64_t width);

}  // namespace ullage::models
