#include "config/check_value.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <regex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/bytes.h"
#include "config/json_reader.h"
#include "ullage/error.h"

namespace ullage::config {
namespace {

using nlohmann::json;

// Patterns are compiled recursively; no name needs a longer one.
constexpr std::size_t kLongestPattern = 1000;

constexpr std::pair<std::string_view, std::string_view> kDTypes[] = {
    {"fp32", "fp32"},          {"float32", "fp32"},        {"float", "fp32"},
    {"torch.float32", "fp32"}, {"fp16", "fp16"},           {"float16", "fp16"},
    {"half", "fp16"},          {"torch.float16", "fp16"},  {"bf16", "bf16"},
    {"bfloat16", "bf16"},      {"torch.bfloat16", "bf16"}, {"int8", "int8"},
    {"torch.int8", "int8"}};

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('|'), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string JoinWords(std::string_view words) {
  const std::vector<std::string_view> parts = Split(words);
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " or " : ", ";
    text += fmt::format("\"{}\"", parts[i]);
  }
  return text;
}

std::string Range(const KeyInfo& key, double min) {
  const bool from = min != -kUnlimited;
  const bool to = key.max != kUnlimited;
  if (from && to) return fmt::format(" from {} to {}", min, key.max);
  if (from) return fmt::format(" of at least {}", min);
  if (to) return fmt::format(" of at most {}", key.max);
  return "";
}

[[noreturn]] void Refuse(const KeyInfo& key, const std::string& written, const json& value) {
  throw ConfigError(
      fmt::format("{}: {} is not allowed; allowed: {}", written, Show(value), Allowed(key)));
}

std::optional<std::int64_t> AsInteger(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::floor(number) || number < -0x1p63 || number >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool InRange(const KeyInfo& key, double number) {
  return number >= key.min && number <= key.max;
}

json CheckInteger(const KeyInfo& key, const std::string& written, const json& value) {
  const std::optional<std::int64_t> number = AsInteger(value);
  if (!number || !InRange(key, static_cast<double>(*number))) Refuse(key, written, value);
  return *number;
}

json CheckNumber(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_number() || !InRange(key, value.get<double>())) Refuse(key, written, value);
  return value.get<double>();
}

json CheckNumberOrList(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_array()) return CheckNumber(key, written, value);
  for (const json& item : value) CheckNumber(key, written, item);
  throw UnsupportedError(
      fmt::format("{}: {}: one value for each parameter group is not offered", written,
                  Show(value)),
      "give one number here, and the differences between groups in ullage.parameter_groups");
}

json CheckBetas(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_array() || value.size() != 2) Refuse(key, written, value);
  for (const json& beta : value) {
    if (!beta.is_number() || beta.get<double>() < 0 || beta.get<double>() >= 1) {
      Refuse(key, written, value);
    }
  }
  return value;
}

// A word in the table's spelling; case does not matter.
json CheckString(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_string()) Refuse(key, written, value);
  if (key.words.empty()) return value;
  const std::string lower = Lower(value.get<std::string>());
  for (const std::string_view word : Split(key.words)) {
    if (Lower(std::string(word)) == lower) return word;
  }
  Refuse(key, written, value);
}

json CheckDType(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_string() || CanonicalDType(value.get_ref<const std::string&>()).empty()) {
    Refuse(key, written, value);
  }
  return value;
}

json CheckBytes(const KeyInfo& key, const std::string& written, const json& value) {
  std::optional<std::int64_t> bytes;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    try {
      if (text.size() <= 64) bytes = ParseBytes(text);
    } catch (const ConfigError&) {
      // The message below names the key, which ParseBytes does not know.
    }
  } else {
    bytes = AsInteger(value);
  }
  if (!bytes || !InRange(key, static_cast<double>(*bytes))) Refuse(key, written, value);
  return *bytes;
}

json CheckPattern(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_string()) Refuse(key, written, value);
  const auto& pattern = value.get_ref<const std::string&>();
  if (pattern.size() > kLongestPattern) {
    throw ConfigError(fmt::format("{}: a pattern of {} bytes; allowed: {}", written, pattern.size(),
                                  kLongestPattern));
  }
  try {
    const std::regex compiled(pattern);
  } catch (const std::regex_error& error) {
    throw ConfigError(fmt::format("{}: {} is not a regular expression: {}", written, Show(value),
                                  Shorten(error.what(), 200)),
                      "patterns are searched anywhere in a name; write \\. for a full stop");
  }
  return value;
}

json CheckList(const KeyInfo& key, const std::string& written, const json& value) {
  if (!value.is_array()) Refuse(key, written, value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_string()) Refuse(key, written, value);
    if (key.kind == ValueKind::kPatterns) {
      CheckPattern(key, fmt::format("{}[{}]", written, i), value[i]);
    }
  }
  return value;
}

[[noreturn]] void RefuseAuto(const KeyInfo& key, const std::string& written) {
  const std::string source =
      key.auto_is.empty()
          ? "the Hugging Face Trainer fills in none for this key"
          : fmt::format("the Hugging Face entry point fills it in from its arguments ({})",
                        key.auto_is);
  throw ConfigError(fmt::format("{}: \"auto\" is not resolved", written),
                    source + "; otherwise write the value, or leave the key out for the default");
}

// A feature with details of its own is off when its switch says so, or, where it has only
// switches further down, when all of them do.
bool AnySwitchOn(const json& value, bool& any_switch) {
  bool on = false;
  for (const auto& item : value.items()) {
    if (value.is_object() && item.key() == "enabled") {
      any_switch = true;
      on = on || item.value() != json(false);
    } else if (item.value().is_structured()) {
      on = AnySwitchOn(item.value(), any_switch) || on;
    }
  }
  return on;
}

bool IsOff(const json& value) {
  if (value.is_null() || value == json(false)) return true;
  if (!value.is_object()) return false;
  if (const auto enabled = value.find("enabled"); enabled != value.end()) {
    return *enabled == json(false);
  }
  bool any_switch = false;
  const bool on = AnySwitchOn(value, any_switch);
  return any_switch && !on;
}

}  // namespace

std::string_view CanonicalDType(std::string_view name) {
  const std::string lower = Lower(std::string(name.substr(0, 32)));
  for (const auto& [spelling, canonical] : kDTypes) {
    if (spelling == lower && name.size() == spelling.size()) return canonical;
  }
  return "";
}

std::string Allowed(const KeyInfo& key) {
  const std::string null = key.nullable ? ", or null" : "";
  switch (key.kind) {
    case ValueKind::kBool:
      return "true or false" + null;
    case ValueKind::kInteger:
      return "an integer" + Range(key, key.min) + null;
    case ValueKind::kNumber:
    case ValueKind::kNumberOrList:
      return "a number" + Range(key, key.min) + null;
    case ValueKind::kBetas:
      return "a list of two numbers, each at least 0 and less than 1";
    case ValueKind::kString:
      return (key.words.empty() ? "text" : JoinWords(key.words)) + null;
    case ValueKind::kDType:
      return "\"fp32\", \"bf16\", \"fp16\" or \"int8\"" + null;
    case ValueKind::kBytes:
      return "a number of bytes" + Range(key, key.min) + ", such as 38e9 or \"40GiB\"" + null;
    case ValueKind::kStrings:
      return "a list of texts";
    case ValueKind::kPatterns:
      return "a list of regular expressions";
    case ValueKind::kPattern:
      return "a regular expression";
    case ValueKind::kGroups:
      return "a list of sections";
    case ValueKind::kSection:
      return "a section { }" + null;
    case ValueKind::kZeroSection:
      return "a section { }, or true or false";
    case ValueKind::kOpaque:
    case ValueKind::kAnything:
      return "anything";
  }
  return "";
}

json CheckValue(const KeyInfo& key, const std::string& written, const json& value) {
  if (key.kind == ValueKind::kAnything) return value;
  if (value == json("auto")) RefuseAuto(key, written);
  if (key.kind == ValueKind::kOpaque) {
    if (value.is_object() && value.contains("enabled") && value["enabled"] == json("auto")) {
      RefuseAuto(key, written + ".enabled");
    }
    return value;
  }
  if (value.is_null() && key.nullable) return value;
  switch (key.kind) {
    case ValueKind::kBool:
      if (!value.is_boolean()) Refuse(key, written, value);
      return value;
    case ValueKind::kInteger:
      return CheckInteger(key, written, value);
    case ValueKind::kNumber:
      return CheckNumber(key, written, value);
    case ValueKind::kNumberOrList:
      return CheckNumberOrList(key, written, value);
    case ValueKind::kBetas:
      return CheckBetas(key, written, value);
    case ValueKind::kString:
      return CheckString(key, written, value);
    case ValueKind::kDType:
      return CheckDType(key, written, value);
    case ValueKind::kBytes:
      return CheckBytes(key, written, value);
    case ValueKind::kPattern:
      return CheckPattern(key, written, value);
    case ValueKind::kStrings:
    case ValueKind::kPatterns:
      return CheckList(key, written, value);
    case ValueKind::kGroups:
      if (!value.is_array()) Refuse(key, written, value);
      return value;
    case ValueKind::kZeroSection:
      if (value.is_boolean()) return value;
      [[fallthrough]];
    case ValueKind::kSection:
      if (!value.is_object()) Refuse(key, written, value);
      return value;
    case ValueKind::kOpaque:
    case ValueKind::kAnything:
      break;
  }
  return value;
}

void CheckOffered(const KeyInfo& key, const std::string& written, const json& value) {
  const bool yet = key.standing == Standing::kNotOfferedYet;
  if (!yet && key.standing != Standing::kNotOffered) return;
  if (value.is_null()) return;
  if (key.kind == ValueKind::kOpaque && IsOff(value)) return;
  for (const std::string_view accepted : Split(key.accepted)) {
    if (json::parse(accepted) == value) return;
  }
  std::string hint = "remove the key";
  if (!key.accepted.empty()) {
    hint += fmt::format(", or set it to {}", Split(key.accepted).front());
  } else if (key.kind == ValueKind::kOpaque) {
    hint += ", or set it to {\"enabled\": false}";
  }
  throw UnsupportedError(fmt::format("{}: {} is recognised but not offered{}: {}", written,
                                     Show(value), yet ? " yet" : "", key.reason),
                         hint);
}

}  // namespace ullage::config
