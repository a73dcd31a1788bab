#include "config/types.h"

#include <algorithm>
#include <cctype>
#include <span>

#include <fmt/format.h>

#include "config/json_reader.h"
#include "config/nearest_key.h"
#include "ullage/error.h"

namespace ullage::config {
namespace {

using nlohmann::json;
using Names = std::span<const std::string_view>;

constexpr std::string_view kOptimizers[] = {"Adam", "AdamW", "SGD"};
constexpr std::string_view kLaterOptimizers[] = {"Adafactor", "Lion", "AdamW8bit"};
constexpr std::string_view kOtherOptimizers[] = {
    "Adagrad", "Lamb",    "Muon",  "OneBitAdam", "ZeroOneAdam", "OneBitLamb",
    "MuAdam",  "MuAdamW", "MuSGD", "ASGD",       "Adadelta",    "Adamax",
    "LBFGS",   "NAdam",   "RAdam", "RMSprop",    "Rprop",       "SparseAdam"};

constexpr std::string_view kSchedulers[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                                            "OneCycle", "LRRangeTest"};
constexpr std::string_view kOtherSchedulers[] = {"LambdaLR",
                                                 "MultiplicativeLR",
                                                 "StepLR",
                                                 "MultiStepLR",
                                                 "ConstantLR",
                                                 "LinearLR",
                                                 "ExponentialLR",
                                                 "SequentialLR",
                                                 "CosineAnnealingLR",
                                                 "ChainedScheduler",
                                                 "ReduceLROnPlateau",
                                                 "CyclicLR",
                                                 "CosineAnnealingWarmRestarts",
                                                 "OneCycleLR",
                                                 "PolynomialLR"};

bool SameWord(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

// The name's spelling in `names`; empty when it is not there.
std::string FindName(std::string_view name, Names names) {
  for (const std::string_view known : names) {
    if (SameWord(name, known)) return std::string(known);
  }
  return "";
}

std::string List(Names names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::string ReadType(const json& root, const std::string& section, Names offered, Names later,
                     Names other) {
  const auto found = root.find(section);
  if (found == root.end() || !found->is_object()) return "";  // the table refuses other kinds
  const std::string key = section + ".type";
  const auto type = found->find("type");
  if (type == found->end()) {
    throw ConfigError(fmt::format("{}: missing; allowed: {}", key, List(offered)),
                      fmt::format("a section {} names its type", section));
  }
  if (!type->is_string()) {
    throw ConfigError(
        fmt::format("{}: {} is not allowed; allowed: {}", key, Show(*type), List(offered)));
  }
  const auto& name = type->get_ref<const std::string&>();
  if (std::string known = FindName(name, offered); !known.empty()) return known;
  const bool is_later = !FindName(name, later).empty();
  if (is_later || !FindName(name, other).empty()) {
    throw UnsupportedError(fmt::format("{}: {} is recognised but not offered{}", key, Show(*type),
                                       is_later ? " yet" : ""),
                           fmt::format("use one of {}", List(offered)));
  }
  const std::string nearest = NearestWord(name, offered);
  throw ConfigError(
      fmt::format("{}: {} is not allowed; allowed: {}", key, Show(*type), List(offered)),
      nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
}

}  // namespace

Types ReadTypes(const json& root) {
  return {.optimizer = ReadType(root, "optimizer", kOptimizers, kLaterOptimizers, kOtherOptimizers),
          .scheduler = ReadType(root, "scheduler", kSchedulers, {}, kOtherSchedulers)};
}

std::vector<std::string_view> ScopesOf(const Types& types) {
  std::vector<std::string_view> scopes = {types.optimizer == "SGD" ? "SGD" : "Adam"};
  for (const std::string_view name : kSchedulers) {
    if (name == types.scheduler) scopes.push_back(name);
  }
  return scopes;
}

}  // namespace ullage::config
