// Several linear maps of the same input, as the queries, keys and values of attention are.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ullage::models {

struct Linear;  // layers.h

// Each map applied to `x` [tokens, width]. The same numbers as one after the other; in backward the
// products add up into the gradient of `x` themselves, instead of being made and then added.
std::vector<at::Tensor> Project(const at::Tensor& x, const std::vector<const Linear*>& maps);

}  // namespace ullage::models
