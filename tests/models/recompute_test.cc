// Whole layers run again in backward: the same bits, fewer bytes.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>

#include "memory_meter.h"
#include "tiny_llama.h"

namespace ullage::models {
namespace {

using at::Tensor;

struct Outcome {
  Tensor loss;
  std::map<std::string, Tensor> gradients;
};

Outcome Train(Model& model, const Batch& batch, bool recompute) {
  model.set_recompute(recompute);
  at::manual_seed(17);
  Outcome outcome{model.Loss(batch).loss, {}};
  outcome.loss.backward();
  for (auto& parameter : model.module().named_parameters()) {
    Tensor gradient = std::exchange(parameter.value().mutable_grad(), {});
    if (gradient.defined()) outcome.gradients[parameter.key()] = gradient;
  }
  return outcome;
}

void ExpectTheSameBits(Model& model, const Batch& batch) {
  const Outcome kept = Train(model, batch, false), again = Train(model, batch, true);
  EXPECT_EQ(kept.loss.item<float>(), again.loss.item<float>());
  ASSERT_EQ(kept.gradients.size(), again.gradients.size());
  for (const auto& [name, gradient] : kept.gradients) {
    EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << name;
  }
}

TEST(Recompute, OfBertLayersGivesTheSameBitsWithDropout) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto model = TinyModel({{"attention_probs_dropout_prob", 0.3}});
    model->module().to(dtype);
    Batch batch = TinyBatch(4, 7);
    batch.labels = at::tensor({1, 0, -100, 1}, at::kLong);
    batch.attention_mask = at::ones({4, 7}, at::kLong);
    batch.attention_mask[2].slice(0, 4).zero_();
    ExpectTheSameBits(*model, batch);
  }
}

TEST(Recompute, OfDecoderLayersGivesTheSameBits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const double dropout : {0.0, 0.3}) {
      const auto model = TinyLlama({{"model_type", "qwen3"},
                                    {"attention_dropout", dropout},
                                    {"use_sliding_window", true},
                                    {"sliding_window", 4},
                                    {"max_window_layers", 1}});
      model->module().to(dtype);
      ExpectTheSameBits(*model, TinyBatch(3, 9));
    }
  }
}

TEST(Recompute, HoldsOneInputForEachLayerFromForwardToBackward) {
  const nlohmann::json changes = {{"num_hidden_layers", 6}, {"vocab_size", 60}};
  const auto held = [](Model& model, const Batch& batch, bool recompute) {
    model.set_recompute(recompute);
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    const Tensor loss = model.Loss(batch).loss;
    return meter->now();
  };
  const auto llama = TinyLlama(changes);
  const Batch batch = TinyBatch(32, 32);
  const std::int64_t input = 4 * 32 * 32 * 24;  // bytes of one layer's
  EXPECT_GT(held(*llama, batch, false), 6 * 10 * input);
  // Six inputs and the last output, the final norm's copies, the loss head's gradients; and the
  // state of the generator that each layer keeps.
  EXPECT_LT(held(*llama, batch, true), 12 * input + 6 * 6000);
}

TEST(Recompute, IsOffAtFirstAndCanBeSwitchedOffAgain) {
  const auto model = TinyLlama();
  const Batch batch = TinyBatch(8, 32);
  const auto peak = [&] { return PeakBytes([&] { model->Loss(batch).loss.backward(); }); };
  const std::int64_t first = peak();
  model->set_recompute(true);
  EXPECT_LT(peak(), first);
  model->set_recompute(false);
  EXPECT_GE(peak(), first * 9 / 10);
}

}  // namespace
}  // namespace ullage::models
