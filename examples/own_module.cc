// Trains a module of one's own. It learns to continue a text letter by letter.
//
//   own_module                               one rank
//   torchrun --nproc-per-node 2 --no-python own_module    two, each with half of the state
//
// The module does what Ullage has to put up with: it computes with raw weights, its output layer
// shares the weight of its embedding, and one weight belongs to another module than the one that
// reads it. Nothing in it knows of the engine.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <cstdio>
#include <string>
#include <vector>

#include "ullage/engine.h"

namespace {

constexpr std::int64_t kLetters = 27;  // a to z and the space
constexpr std::int64_t kContext = 4;   // letters that are seen to guess the next one
constexpr std::int64_t kWidth = 48;

const std::string kText =
    "the quick brown fox jumps over the lazy dog while five boxing wizards pack my box with "
    "a dozen jugs of liquid ";

at::Tensor Random(at::IntArrayRef shape, double deviation) {
  return at::randn(shape) * deviation;
}

struct Scale : torch::nn::Module {
  Scale() { gain = register_parameter("gain", at::zeros({kWidth})); }
  at::Tensor gain;
};

struct Letters : torch::nn::Module {
  Letters() {
    embedding = register_parameter("embedding", Random({kLetters, kWidth}, 0.3));
    mix = register_parameter("mix", Random({kContext * kWidth, kWidth}, 0.07));
    scale = register_module("scale", std::make_shared<Scale>());
    output = register_parameter("output", embedding);  // the same weight under a second name
  }

  // context [B, kContext] and next [B] are letters; the mean loss of guessing `next`.
  at::Tensor Loss(const at::Tensor& context, const at::Tensor& next) const {
    const at::Tensor seen = at::embedding(embedding, context).flatten(1);
    const at::Tensor hidden = at::gelu(seen.matmul(mix)) * (1 + scale->gain);
    return at::cross_entropy_loss(at::linear(hidden, output), next);
  }

  at::Tensor embedding, mix, output;
  std::shared_ptr<Scale> scale;
};

std::int64_t LetterAt(std::size_t place) {
  const char letter = kText[place % kText.size()];
  return letter == ' ' ? kLetters - 1 : letter - 'a';
}

// Records [first, first + count) of the text: each is a place in it.
std::pair<at::Tensor, at::Tensor> Batch(std::size_t first, std::int64_t count) {
  std::vector<std::int64_t> context, next;
  for (std::size_t place = first; place < first + static_cast<std::size_t>(count); ++place) {
    for (std::size_t i = 0; i < kContext; ++i) context.push_back(LetterAt(place + i));
    next.push_back(LetterAt(place + kContext));
  }
  return {at::tensor(context, at::kLong).view({count, kContext}), at::tensor(next, at::kLong)};
}

double Train() {
  at::manual_seed(1);
  Letters model;
  const ullage::Settings settings = ullage::Settings::FromText(R"({
    "train_batch_size": 16,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100}
  })");
  ullage::Engine engine(ullage::NamedParameters(model), settings);
  const bool is_first = engine.ranks().rank() == 0;
  if (is_first) std::printf("%s", engine.PlanText().c_str());

  const std::int64_t micro_batch = engine.batch_sizes().micro_batch;
  double loss_value = 0;
  for (std::size_t step = 0; step < 400; ++step) {
    const std::size_t first =
        16 * step + static_cast<std::size_t>(micro_batch * engine.ranks().rank());
    const auto [context, next] = Batch(first, micro_batch);
    const at::Tensor loss = engine.Forward([&] { return model.Loss(context, next); });
    engine.Backward(loss);
    if (!engine.IsAccumulationBoundary()) continue;
    const ullage::StepResult result = engine.Step();
    loss_value = loss.item<double>();
    if (is_first && step % 50 == 0) {
      std::printf("step %3zu  loss %.4f  gradient norm %.3f\n", step, loss_value, result.grad_norm);
    }
  }
  if (is_first) std::printf("loss at the end: %.4f\n", loss_value);
  return loss_value;
}

}  // namespace

int main() {
  try {
    return Train() < 0.1 ? 0 : 1;  // 0: it knows the text by heart
  } catch (const ullage::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
