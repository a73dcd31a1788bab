#include "engine/checkpoint_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <cstring>

#include "checkpoint/checkpoint_reader.h"
#include "files/file_system.h"

namespace ullage::testing {

KeptModel::KeptModel(int seed) {
  // Of its own: ranks are threads here, and share torch's default one.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  const auto make = [&generator](at::IntArrayRef shape, bool trainable = true) {
    return (at::randn(shape, generator) * 0.2).set_requires_grad(trainable);
  };
  embedding = make({37, 19});
  bias = make({37});
  frozen = make({37, 37}, false);
  empty = make({0, 4});
  one = make({1});
  odd = make({3, 37});
}

ParameterList KeptModel::List() const {
  ParameterList list;
  list.Add("embedding", embedding);
  list.Add("bias", bias);
  list.Add("frozen", frozen);
  list.Add("empty", empty);
  list.Add("one", one);
  list.Add("odd", odd);
  list.Add("head", embedding);  // tied
  list.AddBuffer("running", running);
  list.AddBuffer("count", count);
  return list;
}

at::Tensor KeptModel::Loss(const at::Tensor& x) const {
  at::Tensor h = at::tanh(at::linear(x.to(embedding.scalar_type()), embedding, bias));
  h = at::matmul(h, frozen) * one + odd.sum(0);
  return at::matmul(h, embedding).pow(2).mean().to(at::kFloat) + empty.sum().to(at::kFloat);
}

Settings KeptSettings(const Case& c, const std::string& extra, int micro_batches) {
  return SettingsFor(
      c, R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
             "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 8}},
             "gradient_clipping": 0.5, "gradient_accumulation_steps": )" +
             std::to_string(micro_batches / c.world_size) + extra + "}");
}

void TrainSteps(Engine& engine, KeptModel& model, int first, int last, int micro_batches) {
  const int world_size = engine.ranks().world_size();
  for (int step = first; step < last; ++step) {
    for (int m = 0; m < micro_batches / world_size; ++m) {
      const int index = m * world_size + engine.ranks().rank();
      const at::Tensor x = at::sin(at::arange(2 * 19).view({2, 19}) * (0.1 + index + 10 * step));
      engine.Backward(engine.Forward([&] { return model.Loss(x); }));
    }
    engine.Step();
    model.running.add_(0.1 * step);
    model.count.add_(1);
  }
}

Contents ContentsOf(const std::string& path) {
  files::PosixFileSystem fs;
  const checkpoint::CheckpointReader reader(fs, path);
  const checkpoint::Manifest& manifest = reader.manifest();
  Contents contents;
  for (const checkpoint::Tensor& tensor : manifest.tensors) {
    for (const std::string& part : manifest.PartsOf(tensor)) {
      std::vector<std::byte>& bytes = contents[checkpoint::NameInFile(part, tensor.name)];
      bytes.resize(static_cast<std::size_t>(
          tensor.numel * files::ElementBytes(checkpoint::Manifest::TypeOf(tensor, part))));
      reader.ReadInto({&tensor, part, 0, tensor.numel}, bytes.data());
    }
  }
  const checkpoint::LossScale& scale = manifest.loss_scale;
  const std::string counters = fmt::format(
      "{} {} {} {} {} {} {} {}", manifest.applied_steps, manifest.skipped_steps, manifest.seed,
      manifest.lr, scale.scale, scale.iteration, scale.last_overflow, scale.hysteresis_left);
  std::vector<std::byte>& bytes = contents["counters"];
  bytes.resize(counters.size());
  std::memcpy(bytes.data(), counters.data(), counters.size());
  return contents;
}

}  // namespace ullage::testing
