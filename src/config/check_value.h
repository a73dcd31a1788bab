// One value of the file against its row of the table.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "config/key_table.h"
#include "ullage/settings.h"

namespace ullage::config {

// Throws ConfigError for an unresolved "auto", a wrong type or a value out of range, naming the
// key as `written`, the value and what is allowed. Returns the value in the form that getters
// read: integers as integers, byte counts as bytes, words in the table's spelling.
nlohmann::json CheckValue(const KeyInfo& key, const std::string& written,
                          const nlohmann::json& value);

// Throws UnsupportedError unless the value of a key that is not offered asks for nothing.
void CheckOffered(const KeyInfo& key, const std::string& written, const nlohmann::json& value);

// The precision that one of DeepSpeed's names of element types means; int8 is none of ours.
// `name` must have passed CheckValue as kDType.
std::string_view CanonicalDType(std::string_view name);

// "true or false", "an integer from 0 to 3", ...
std::string Allowed(const KeyInfo& key);

}  // namespace ullage::config
