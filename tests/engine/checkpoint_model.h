// A model with everything that a checkpoint must not lose, and what a checkpoint of it holds.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/support.h"

namespace ullage::testing {

// A tied pair, a frozen layer, an empty parameter, one smaller than any number of ranks, odd sizes,
// and buffers.
struct KeptModel {
  at::Tensor embedding, bias, frozen, empty, one, odd;
  at::Tensor running = torch::zeros({3}), count = torch::zeros({}, torch::kLong);

  explicit KeptModel(int seed = 11);
  ParameterList List() const;
  at::Tensor Loss(const at::Tensor& x) const;  // x: [2, 19]
};

// Settings of the tests here: AdamW or other, clipped, `micro_batches` over all ranks.
Settings KeptSettings(const Case& c, const std::string& extra = "", int micro_batches = 4);

// Steps first .. last - 1; which numbers they see depends on the step and the micro-batch alone.
// Every step also changes the buffers.
void TrainSteps(Engine& engine, KeptModel& model, int first, int last, int micro_batches = 4);

// Every part of every tensor by its name in files, whole, read and verified; "steps" and the like
// as text.
using Contents = std::map<std::string, std::vector<std::byte>>;
Contents ContentsOf(const std::string& checkpoint);

}  // namespace ullage::testing
