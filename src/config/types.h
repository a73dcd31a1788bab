// The optimizer and scheduler types of a file, which decide what their parameters are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace ullage::config {

// What stands under "optimizer.type" and "scheduler.type"; empty without such a section.
struct Types {
  std::string optimizer;  // "Adam", "AdamW", "SGD", however the file spells them
  std::string scheduler;  // "WarmupLR", "WarmupDecayLR", ...
};

// Throws ConfigError for a section without a type or an unknown one, UnsupportedError for a type
// of DeepSpeed or torch that is not offered.
Types ReadTypes(const nlohmann::json& root);

// The scopes of the key table in which the parameters of these types stand. Without a section the
// defaults' parameters.
std::vector<std::string_view> ScopesOf(const Types& types);

}  // namespace ullage::config
