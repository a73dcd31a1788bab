// The model's parameters as the engine was given them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "layout/unit.h"
#include "ullage/engine.h"

namespace ullage {

struct ParameterList::Entries {
  std::vector<std::pair<std::string, at::Tensor>> list;
  std::vector<std::string> buffers;                                // names of all
  std::vector<std::pair<std::string, at::Tensor>> buffer_tensors;  // of those that checkpoints keep
};

namespace engine {

// A parameter that exists once, with every tensor that shares its storage.
struct DistinctParameter {
  layout::ParameterSpec spec;        // under its first name
  std::vector<std::string> aliases;  // its other names
  std::vector<at::Tensor> tensors;
};

// Tied parameters are one. Throws UnsupportedError for what cannot be managed: no floating point,
// or two parameters that overlap without being the same.
std::vector<DistinctParameter> FindDistinct(const ParameterList& list, DType weight_dtype);

}  // namespace engine
}  // namespace ullage
