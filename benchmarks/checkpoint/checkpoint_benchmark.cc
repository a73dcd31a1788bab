// Saves and loads a checkpoint whenever a line on stdin says so, and prints the milliseconds.
//
//   checkpoint_benchmark FOLDER MB_OF_CHECKPOINT
//
// One rank; fp32 weights in matrices of 16 MB with Adam's moments. "save" waits until everything is
// on the disk, "load" reads and verifies the last one; "quit" ends. run.py beside it does the
// asking, so that other programs take turns.
#include <ATen/ops/add.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <stdio.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "ullage/engine.h"
#include "ullage/ranks.h"

namespace {

constexpr std::int64_t kSide = 2048;

void Print(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  fmt::print("{:.1f}\n", took.count());
  ::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: checkpoint_benchmark FOLDER MB_OF_CHECKPOINT\n");
    return 2;
  }
  const std::string folder = argv[1];
  const std::int64_t matrices = (std::atoll(argv[2]) << 20) / (3 * 4 * kSide * kSide);
  std::vector<at::Tensor> weights;
  ullage::ParameterList list;
  for (std::int64_t i = 0; i < matrices; ++i) {
    weights.push_back(at::randn({kSide, kSide}).set_requires_grad(true));
    list.Add(fmt::format("layer.{}.weight", i), weights.back());
  }
  ullage::Engine engine(std::move(list), ullage::Settings::FromText(R"({
      "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})"),
                        std::make_shared<ullage::Ranks>(ullage::comm::MakeSingleComm()));
  engine.Backward(engine.Forward([&] {
    at::Tensor sum = at::sum(weights[0]);
    for (std::size_t i = 1; i < weights.size(); ++i) sum = at::add(sum, at::sum(weights[i]));
    return sum;
  }));
  engine.Step();
  fmt::print("ready\n");
  ::fflush(stdout);
  ullage::SaveOptions options;
  options.keep = 1;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line == "save") Print([&] { engine.SaveCheckpoint(folder, options); });
    if (line == "load") Print([&] { engine.LoadCheckpoint(folder); });
  }
  return 0;
}
