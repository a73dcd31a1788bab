// Runs the Python whose packages the tests compare with.
#pragma once

#include <cstdlib>
#include <string>

#include "scratch.h"

namespace testsupport {

// Runs `code` with the scratch directory as working directory; a failure ends the calling test.
inline void RunPython(const Scratch& scratch, const std::string& code) {
  scratch.Write("script.py", code);
  const std::string command =
      "cd '" + scratch.path() + "' && '" ULLAGE_TEST_PYTHON "' script.py > log 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << scratch.Read("log");
}

}  // namespace testsupport
