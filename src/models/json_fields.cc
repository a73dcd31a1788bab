#include "models/json_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "ullage/error.h"

namespace ullage::models {

JsonFields::JsonFields(const nlohmann::json& object, std::string source)
    : object_(object), source_(std::move(source)) {}

const nlohmann::json* JsonFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::Describe(const char* key) const {
  constexpr std::size_t kLongest = 80;
  const nlohmann::json* value = Find(key);
  std::string text = "absent";
  if (value != nullptr) text = value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return fmt::format("{}: {}: {}", source_, key, text);
}

void JsonFields::Fail(const char* key, const std::string& allowed) const {
  throw ConfigError(Describe(key) + " is not allowed", fmt::format("{} is {}", key, allowed));
}

std::int64_t JsonFields::Integer(const char* key, std::int64_t fallback, std::int64_t lowest,
                                 std::int64_t highest) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const std::string allowed = fmt::format("an integer from {} to {}", lowest, highest);
  if (!value->is_number()) Fail(key, allowed);
  // As a double: a number that does not fit into 64 bits arrives as one, and limits fit exactly.
  const double number = value->get<double>();
  if (!(number >= static_cast<double>(lowest) && number <= static_cast<double>(highest)) ||
      number != std::floor(number)) {
    Fail(key, allowed);
  }
  return static_cast<std::int64_t>(number);
}

double JsonFields::Number(const char* key, double fallback, double lowest, double limit) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const std::string allowed = fmt::format("a number, at least {} and less than {}", lowest, limit);
  if (!value->is_number()) Fail(key, allowed);
  const double number = value->get<double>();
  if (!(number >= lowest && number < limit)) Fail(key, allowed);
  return number;
}

bool JsonFields::Bool(const char* key, bool fallback) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) Fail(key, "true or false");
  return value->get<bool>();
}

std::string JsonFields::String(const char* key, std::string_view fallback) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) Fail(key, "a string");
  return value->get<std::string>();
}

}  // namespace ullage::models
