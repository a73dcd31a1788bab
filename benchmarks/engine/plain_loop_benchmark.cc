// Step time of the engine beside a plain LibTorch loop: same model, weights, batches and threads,
// in one process, taking turns. Prints the median of the ratios of neighbouring steps.
//
//   plain_loop_benchmark MODEL_DIR [stage] [batch] [length] [steps]
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "comm/comm.h"
#include "models/model.h"
#include "ullage/engine.h"

namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::unique_ptr<ullage::models::Model> Make(const std::string& directory) {
  auto model = ullage::models::MakeModel(directory + "/config.json", 2, c10::kCPU);
  for (auto& item : model->module().named_parameters()) {
    model->InitialValue(item.key(), 1, item.value());
  }
  model->module().train();
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(
        "usage: plain_loop_benchmark MODEL_DIR [stage 3] [batch 16] [length 64] [steps 15]\n");
    return 2;
  }
  const auto argument = [&](int i, std::int64_t fallback) {
    return argc > i ? std::atoll(argv[i]) : fallback;
  };
  const std::int64_t stage = argument(2, 3), batch = argument(3, 16), length = argument(4, 64),
                     steps = argument(5, 15);

  auto plain = Make(argv[1]);
  torch::optim::AdamW optimizer(plain->module().parameters(),
                                torch::optim::AdamWOptions(5e-5).weight_decay(0.01));
  auto managed = Make(argv[1]);
  ullage::Settings settings = ullage::Settings::FromText(fmt::format(
      R"({{"train_micro_batch_size_per_gpu": {}, "gradient_clipping": 1.0, "optimizer": {{"type":
      "AdamW", "params": {{"lr": 5e-5, "weight_decay": 0.01}}}}, "zero_optimization": {{"stage": {}}}}})",
      batch, stage));
  ullage::Engine engine(ullage::NamedParameters(managed->module()), settings,
                        std::make_shared<ullage::Ranks>(ullage::comm::MakeSingleComm()));

  const at::Tensor labels = at::randint(2, {batch}, at::kLong);
  const at::Tensor mask = at::ones({batch, length}, at::kLong);
  std::vector<double> plain_ms, engine_ms, ratios;
  for (std::int64_t step = 0; step < steps + 3; ++step) {
    const at::Tensor ids = at::randint(1000, 20000, {batch, length}, at::kLong);
    auto start = Clock::now();
    optimizer.zero_grad();
    (plain->Loss(ids, mask, labels).loss / batch).backward();
    torch::nn::utils::clip_grad_norm_(plain->module().parameters(), 1.0);
    optimizer.step();
    const double plain_time = Milliseconds(start);

    start = Clock::now();
    engine.Backward(engine.Forward([&] { return managed->Loss(ids, mask, labels).loss / batch; }));
    engine.Step();
    const double engine_time = Milliseconds(start);
    if (step < 3) continue;  // warm-up
    plain_ms.push_back(plain_time);
    engine_ms.push_back(engine_time);
    ratios.push_back(engine_time / plain_time);
  }
  fmt::print("stage {}, batch {} x {}: plain {:.1f} ms, engine {:.1f} ms, median ratio {:.3f}\n",
             stage, batch, length, Median(plain_ms), Median(engine_ms), Median(ratios));
}
