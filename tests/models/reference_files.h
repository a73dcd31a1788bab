// The files that reference.py writes, and models filled from them.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "models/model.h"

namespace ullage::models {

using Tensors = std::map<std::string, at::Tensor>;

inline std::string ReadText(const std::filesystem::path& path) {
  std::ostringstream buffer;
  buffer << std::ifstream(path, std::ios::binary).rdbuf();
  return buffer.str();
}

inline Tensors ReadSafetensors(const std::filesystem::path& path) {
  const std::string bytes = ReadText(path);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  Tensors tensors;
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::map<std::string, at::ScalarType> dtypes = {
        {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"I64", at::kLong}, {"I32", at::kInt}};
    at::Tensor tensor = at::empty(entry["shape"].get<std::vector<std::int64_t>>(),
                                  dtypes.at(entry["dtype"].get<std::string>()));
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header_bytes + begin, tensor.nbytes());
    tensors[name] = tensor;
  }
  return tensors;
}

// Copies the file's tensors into the model under the names that the model accepts. Every parameter
// must be there; what is left over must be known to be of no use.
inline void Load(Model& model, const Tensors& file) {
  std::set<std::string> left;
  for (const auto& [name, tensor] : file) left.insert(name);
  for (auto& parameter : model.module().named_parameters()) {
    bool found = false;
    for (const std::string& name : model.FileNames(parameter.key())) {
      if (found || !file.contains(name)) continue;
      found = true;
      left.erase(name);
      ASSERT_EQ(file.at(name).sizes(), parameter.value().sizes()) << name;
      parameter.value().detach().copy_(file.at(name));
    }
    ASSERT_TRUE(found) << parameter.key();
  }
  for (const std::string& name : left) {
    bool unneeded = false;
    for (const std::string& pattern : model.unneeded_tensor_patterns()) {
      unneeded = unneeded || std::regex_search(name, std::regex(pattern));
    }
    EXPECT_TRUE(unneeded) << name;
  }
}

inline double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace ullage::models
