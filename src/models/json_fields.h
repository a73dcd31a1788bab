// Typed, range-checked reading of the fields of a Hugging Face config.json.
//
// A field that is absent or null has its default. A value of the wrong type or out of range throws
// ConfigError with the file, the key, the value and what is allowed.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace ullage::models {

class JsonFields {
 public:
  // `object` must outlive this; `source` names the file in messages.
  JsonFields(const nlohmann::json& object, std::string source);

  std::int64_t Integer(const char* key, std::int64_t fallback, std::int64_t lowest,
                       std::int64_t highest) const;
  // lowest <= value < limit
  double Number(const char* key, double fallback, double lowest, double limit) const;
  bool Bool(const char* key, bool fallback) const;
  std::string String(const char* key, std::string_view fallback) const;

  // The field, or nullptr where it is absent or null.
  const nlohmann::json* Find(const char* key) const;

  // "<file>: <key>: <value as JSON, shortened>"
  std::string Describe(const char* key) const;
  [[noreturn]] void Fail(const char* key, const std::string& allowed) const;

 private:
  const nlohmann::json& object_;
  std::string source_;
};

}  // namespace ullage::models
