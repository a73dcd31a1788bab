// What a settings text is answered with.
#pragma once

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "ullage/error.h"
#include "ullage/settings.h"

namespace ullage::config {

// The message of the error of exactly this class; a test failure and "" when there is none.
template <typename ExpectedError>
std::string ErrorOf(std::string_view text) {
  try {
    Settings::FromText(text, "ds.json");
  } catch (const ExpectedError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another class of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return "";
}

inline std::string ConfigErrorOf(std::string_view text) {
  return ErrorOf<ConfigError>(text);
}
inline std::string UnsupportedErrorOf(std::string_view text) {
  return ErrorOf<UnsupportedError>(text);
}

// The first line, without the hint.
inline std::string FirstLine(const std::string& message) {
  return message.substr(0, message.find('\n'));
}

}  // namespace ullage::config
