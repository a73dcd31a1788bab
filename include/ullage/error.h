// The errors that the public API throws. Each message says what happened, with the values, and
// ends in a line "hint: ..." that names the change that helps. docs/errors.md lists them all.
#pragma once

#include <stdexcept>
#include <string>

#include "ullage/export.h"

namespace ullage {

class ULLAGE_API Error : public std::runtime_error {
 public:
  // `what_happened` contains the values; `hint` is the remedy and may be empty only where none
  // is known.
  explicit Error(const std::string& what_happened, const std::string& hint = "");
};

// The settings, or the arguments of a call, cannot be obeyed.
class ULLAGE_API ConfigError : public Error {
 public:
  using Error::Error;
};

// Recognised, but this build, machine or version does not offer it.
class ULLAGE_API UnsupportedError : public Error {
 public:
  using Error::Error;
};

// A file is missing, damaged, hostile, or could not be written.
class ULLAGE_API IoError : public Error {
 public:
  using Error::Error;
};

// A rank died, diverged, or did not answer within the timeout.
class ULLAGE_API CommError : public Error {
 public:
  using Error::Error;
};

// Device memory, host memory, pinned memory or shared memory does not suffice.
class ULLAGE_API OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// What the program computed cannot be used: a loss scale that cannot fall further, a parameter
// that was rebound behind the engine's back.
class ULLAGE_API StateError : public Error {
 public:
  using Error::Error;
};

}  // namespace ullage
