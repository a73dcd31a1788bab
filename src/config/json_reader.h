// JSON as settings files hold it: comments allowed, no key twice, within bounds.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace ullage::config {

inline constexpr std::size_t kLargestSettingsBytes = std::size_t{4} << 20;
inline constexpr std::size_t kDeepestNesting = 64;

// Reads `text`, whose top level must be an object. Throws ConfigError with `origin`, the byte
// offset (from 0) and what was expected for text that is malformed, truncated, not UTF-8, larger
// than kLargestSettingsBytes, nested deeper than kDeepestNesting, or holds a key twice.
nlohmann::json ReadJson(std::string_view text, const std::string& origin);

// `text` fit for one line of a message: at most `limit` bytes, printable, valid UTF-8.
std::string Shorten(std::string_view text, std::size_t limit = 80);

// A value as a message shows it: JSON, shortened.
std::string Show(const nlohmann::json& value);

}  // namespace ullage::config
