// A model with a forward of its own trains bit for bit as it does without the engine.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "engine/support.h"
#include "kernels/adamw.h"
#include "kernels/weights.h"

namespace ullage::testing {
namespace {

// Does what people are told to avoid: arithmetic on raw weights, a tied head, a weight read from
// its parent, a layer used twice, a list that keeps tensors.
struct OwnForward {
  at::Tensor embedding, scale, layer, norm_weight, norm_bias, conv;
  std::vector<at::Tensor> kept;

  explicit OwnForward(at::ScalarType dtype) {
    torch::manual_seed(3);
    const auto make = [&](at::IntArrayRef shape) {
      return (at::randn(shape) * 0.3).to(dtype).set_requires_grad(true);
    };
    embedding = make({40, 32});
    scale = make({32});
    layer = make({32, 32});
    norm_weight = make({32});
    norm_bias = make({32});
    conv = make({32, 32, 3});
  }

  std::vector<std::pair<std::string, at::Tensor>> Parameters() const {
    return {{"embedding", embedding},     {"scale", scale},         {"layer", layer},
            {"norm.weight", norm_weight}, {"norm.bias", norm_bias}, {"conv", conv},
            {"head", embedding}};
  }

  at::Tensor Loss(const at::Tensor& ids) {
    at::Tensor x = at::embedding(embedding, ids);
    x = x * (scale + scale * scale).unsqueeze(0) + layer[0];  // raw arithmetic, a row of a weight
    for (int i = 0; i < 2; ++i) {                             // a layer used twice
      x = at::layer_norm(x, {32}, norm_weight, norm_bias);
      x = x + at::gelu(at::linear(x, layer));
    }
    x = x + at::conv1d(x.transpose(1, 2), conv, {}, 1, 1).transpose(1, 2);
    kept.push_back(x.detach());
    const at::Tensor logits = at::matmul(x, embedding.t());  // tied
    return at::cross_entropy_loss(logits.to(at::kFloat).view({-1, 40}), ids.view({-1})) +
           1e-3 * at::norm(layer.to(at::kFloat));
  }
};

// The weights of a master: Note [Master in 16 + 16 bit].
at::Tensor Rounded(const at::Tensor& master, at::ScalarType dtype) {
  at::Tensor weights = at::empty(master.sizes(), dtype);
  at::Tensor extension = at::empty(master.sizes());
  kernels::reference::StoreMaster({dtype == at::kFloat ? DType::kFloat32 : DType::kBFloat16,
                                   weights.mutable_data_ptr(), extension.mutable_data_ptr()},
                                  master.const_data_ptr<float>(), master.numel());
  return weights;
}

struct Reference {  // the unmanaged model, stepped by the same kernel
  OwnForward model;
  std::vector<at::Tensor> masters, exp_avg, exp_avg_sq;

  explicit Reference(at::ScalarType dtype) : model(dtype) {
    for (const at::Tensor& tensor : Distinct()) {
      masters.push_back(tensor.detach().to(at::kFloat).clone());
      exp_avg.push_back(at::zeros_like(masters.back()));
      exp_avg_sq.push_back(at::zeros_like(masters.back()));
    }
  }

  std::vector<at::Tensor> Distinct() const {
    return {model.embedding,   model.scale,     model.layer,
            model.norm_weight, model.norm_bias, model.conv};
  }

  void Step(int t) {
    const std::vector<at::Tensor> parameters = Distinct();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = parameters[i].grad().to(at::kFloat).contiguous();
      kernels::AdamWStep step;
      step.lr = 0.01;
      step.weight_decay = 0.1;
      step.t = t;
      kernels::AdamW(step, {DType::kFloat32, masters[i].data_ptr()}, DType::kFloat32,
                     gradient.const_data_ptr(), exp_avg[i].data_ptr<float>(),
                     exp_avg_sq[i].data_ptr<float>(), gradient.numel());
      at::NoGradGuard no_grad;
      at::Tensor(parameters[i]).copy_(Rounded(masters[i], parameters[i].scalar_type()));
      at::Tensor(parameters[i]).mutable_grad().reset();
    }
  }
};

at::Tensor Ids(int step) {
  return (at::arange(60).view({3, 20}) * (step + 3)).remainder(40);
}

void TrainsAsWithoutTheEngine(at::ScalarType dtype, const char* precision) {
  std::vector<Case> cases;
  for (const std::int64_t unit_bytes :
       {std::int64_t{1}, std::int64_t{5000}, std::int64_t{32 << 20}}) {
    cases.push_back({.unit_bytes = unit_bytes});
    const Case sliced = {.stage = 3, .unit_bytes = unit_bytes};
    for (const Case& c : EachTier(sliced)) cases.push_back(c);
    cases.push_back(
        {.stage = 3, .unit_bytes = unit_bytes, .offload_param = true, .prefetch_numel = 4000});
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(Describe(c));
    Reference reference(dtype);
    OwnForward managed(dtype);
    ParameterList list;
    for (const auto& [name, tensor] : managed.Parameters()) list.Add(name, tensor);
    const std::string extra = std::string(R"({"optimizer": {"type": "AdamW",
        "params": {"lr": 0.01, "weight_decay": 0.1}})") +
                              precision + "}";
    OnRanks(1, [&](std::shared_ptr<Ranks> ranks) {
      Engine engine(std::move(list), SettingsFor(c, extra), ranks);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor expected = reference.model.Loss(Ids(step));
        expected.backward();
        const at::Tensor loss = engine.Forward([&] { return managed.Loss(Ids(step)); });
        ASSERT_TRUE(loss.equal(expected)) << step << ": " << loss << " for " << expected;
        engine.Backward(loss);
        reference.Step(step + 1);
        engine.Step();
        if (step == 0) {  // an in-place write under no-grad, which the next step must see
          at::NoGradGuard no_grad;
          reference.model.layer.mul_(0.75);
          reference.masters[2].copy_(reference.model.layer);
          managed.layer.mul_(0.75);
        }
      }
      std::size_t i = 0;
      engine.ForEachParameter([&](const Engine::ParameterPiece& piece) {
        const at::Tensor expected = reference.masters[i++].flatten();
        ASSERT_EQ(piece.values.size(), static_cast<std::size_t>(expected.numel()));
        const float* values = expected.const_data_ptr<float>();
        for (std::size_t k = 0; k < piece.values.size(); ++k) {
          ASSERT_EQ(piece.values[k], values[k]) << *piece.name << "[" << k << "]";
        }
      });
      at::NoGradGuard evaluation;
      EXPECT_TRUE(managed.Loss(Ids(9)).equal(reference.model.Loss(Ids(9))));
      EXPECT_TRUE(managed.kept[0].equal(reference.model.kept[0]));
    });
  }
}

TEST(Unmanaged, Fp32TrainsBitForBitTheSame) {
  TrainsAsWithoutTheEngine(at::kFloat, "");
}

TEST(Unmanaged, Bf16TrainsBitForBitTheSame) {
  TrainsAsWithoutTheEngine(at::kBFloat16, R"(, "bf16": {"enabled": true})");
}

}  // namespace
}  // namespace ullage::testing
