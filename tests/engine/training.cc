#include "engine/training.h"

#include <ATen/CPUGeneratorImpl.h>

namespace ullage::testing {
namespace {

Settings TrainingSettings(const Case& c, const std::string& extra, int micro_batches) {
  return SettingsFor(
      c, R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
             "gradient_clipping": 0.5, "gradient_accumulation_steps": )" +
             std::to_string(micro_batches / c.world_size) + extra + "}");
}

void NoteBytes(const Engine& engine, Bytes& peak, Bytes& planned) {
  for (const auto& [tag, bytes] : engine.memory().peak) peak[tag] = bytes;
  for (const auto& [tag, bytes] : engine.planned_bytes()) planned[tag] = bytes;
}

}  // namespace

Model::Model(bool on_meta) {
  // Of its own: ranks are threads here, and share torch's default one.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{11});
  const auto add = [&](const char* name, at::IntArrayRef shape, bool trainable = true) {
    at::Tensor values = on_meta ? at::empty(shape, at::TensorOptions().device(at::kMeta))
                                : at::randn(shape, generator) * 0.2;
    parameters.emplace_back(name, values.set_requires_grad(trainable));
  };
  add("in.weight", {37, 19});
  add("in.bias", {37});
  add("frozen", {37, 37}, false);
  add("odd", {3, 37});
  add("sometimes", {37});
  add("out.weight", {5, 37});
  add("out.bias", {5});
}

ParameterList Model::List() const {
  ParameterList list;
  for (const auto& [name, tensor] : parameters) list.Add(name, tensor);
  return list;
}

at::Tensor Model::Loss(const at::Tensor& x, bool with_branch) const {
  at::Tensor h = at::tanh(at::linear(x, (*this)[0], (*this)[1]));
  h = at::matmul(h, (*this)[2]);
  h = h + (*this)[3].sum(0);
  if (with_branch) h = h * (*this)[4];
  return at::linear(h, (*this)[5], (*this)[6]).pow(2).mean();
}

Outcome Train(const Case& c, const std::string& extra, int micro_batches) {
  Outcome outcome;
  outcome.peak.resize(static_cast<std::size_t>(c.world_size));
  outcome.planned.resize(static_cast<std::size_t>(c.world_size));
  std::vector<Model> models(static_cast<std::size_t>(c.world_size));
  OnRanks(c.world_size, [&](std::shared_ptr<Ranks> ranks) {
    const auto rank = static_cast<std::size_t>(ranks->rank());
    const Model& model = models[rank];
    Engine engine(model.List(), TrainingSettings(c, extra, micro_batches), ranks);
    for (int step = 0; step < 3; ++step) {
      for (int m = 0; m < micro_batches / c.world_size; ++m) {
        const int index = m * c.world_size + ranks->rank();
        const at::Tensor x = at::sin(at::arange(2 * 19).view({2, 19}) * (0.1 + index + 10 * step));
        const at::Tensor loss = engine.Forward([&] {
          return model.Loss(x.to(model[0].scalar_type()), index % 2 == 1).to(at::kFloat);
        });
        engine.Backward(loss);
      }
      const StepResult result = engine.Step();
      if (rank == 0) outcome.norms.push_back(result.grad_norm);
    }
    const std::string sha = engine.ParametersSha256();
    if (rank == 0) outcome.sha = sha;
    if (rank == 0) outcome.statistics = engine.statistics();
    NoteBytes(engine, outcome.peak[rank], outcome.planned[rank]);
    std::int64_t on_device = 0;
    for (const auto& [tag, bytes] : engine.memory().on_device) on_device += bytes;
    if (rank == 0) outcome.most_on_device = on_device;  // ranks differ in padding only
  });
  return outcome;
}

Outcome TrainDry(const Case& c, int rank, const std::string& extra, int micro_batches) {
  Outcome outcome;
  outcome.peak.resize(1);
  outcome.planned.resize(1);
  const Model model(/*on_meta=*/true);
  EngineOptions options;
  options.dry_run = true;
  Engine engine(model.List(), TrainingSettings(c, extra, micro_batches),
                Ranks::Imagined(rank, c.world_size), options);
  for (int step = 0; step < 3; ++step) {
    for (int m = 0; m < micro_batches / c.world_size; ++m) {
      const at::Tensor x = at::empty({2, 19}, model[0].options().requires_grad(false));
      engine.Backward(engine.Forward([&] { return model.Loss(x, true).to(at::kFloat); }));
    }
    engine.Step();
  }
  outcome.statistics = engine.statistics();
  NoteBytes(engine, outcome.peak.front(), outcome.planned.front());
  return outcome;
}

}  // namespace ullage::testing
