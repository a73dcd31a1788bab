// The small modules that models are built from: named parameters, uninitialised, and the operator
// that uses them. Activations are [tokens, width].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace ullage::models {

struct Linear final : torch::nn::Module {
  Linear(std::int64_t inputs, std::int64_t outputs, c10::Device device, bool has_bias = true)
      : weight(register_parameter("weight", at::empty({outputs, inputs}, device))) {
    if (has_bias) bias = register_parameter("bias", at::empty({outputs}, device));
  }

  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }

  at::Tensor weight;
  at::Tensor bias;  // undefined: none
};

struct LayerNorm final : torch::nn::Module {
  LayerNorm(std::int64_t width, double epsilon, c10::Device device)
      : weight(register_parameter("weight", at::empty({width}, device))),
        bias(register_parameter("bias", at::empty({width}, device))),
        epsilon_(epsilon) {}

  at::Tensor operator()(const at::Tensor& x) const {
    return at::layer_norm(x, {weight.size(0)}, weight, bias, epsilon_);
  }
  double epsilon() const { return epsilon_; }

  at::Tensor weight, bias;

 private:
  double epsilon_;
};

// x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, in fp32, rounded once.
struct RmsNorm final : torch::nn::Module {
  RmsNorm(std::int64_t width, double epsilon, c10::Device device)
      : weight(register_parameter("weight", at::empty({width}, device))), epsilon_(epsilon) {}

  at::Tensor operator()(const at::Tensor& x) const {
    return at::rms_norm(x, {weight.size(0)}, weight, epsilon_);
  }

  at::Tensor weight;

 private:
  double epsilon_;
};

struct Embedding final : torch::nn::Module {
  Embedding(std::int64_t rows, std::int64_t width, c10::Device device)
      : weight(register_parameter("weight", at::empty({rows, width}, device))) {}

  at::Tensor weight;
};

// Only gives its children a common name.
struct Group final : torch::nn::Module {
  template <class T, class... Args>
  std::shared_ptr<T> Add(const std::string& name, Args&&... args) {
    return register_module(name, std::make_shared<T>(std::forward<Args>(args)...));
  }
};

}  // namespace ullage::models
