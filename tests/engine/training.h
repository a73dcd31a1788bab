// A small model, and what training it with an engine gives.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/support.h"

namespace ullage::testing {

using Bytes = std::map<std::string, std::int64_t>;

// Layers of odd sizes, one frozen, one used by some ranks only.
struct Model {
  std::vector<std::pair<std::string, at::Tensor>> parameters;

  explicit Model(bool on_meta = false);
  const at::Tensor& operator[](std::size_t i) const { return parameters[i].second; }
  ParameterList List() const;
  at::Tensor Loss(const at::Tensor& x, bool with_branch) const;
};

struct Outcome {
  std::string sha;
  std::vector<double> norms;
  std::vector<Bytes> peak, planned;  // by rank
  EngineStatistics statistics;       // of rank 0
  std::int64_t most_on_device = 0;   // by rank 0, after the steps
};

// Three steps over `micro_batches` each, however they are spread over ranks and micro-steps.
// `extra` is JSON that goes on with settings.
Outcome Train(const Case& c, const std::string& extra = "", int micro_batches = 4);

// The same steps of a dry run of one rank.
Outcome TrainDry(const Case& c, int rank, const std::string& extra = "", int micro_batches = 4);

}  // namespace ullage::testing
