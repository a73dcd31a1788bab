// Why a blocked call cannot go on. Thrown inside this room only: the Comm and the Window catch it
// and throw CommError with the position of the caller in front (Group::Fail).
#pragma once

#include <exception>
#include <string>

namespace ullage::comm {

struct Problem {
  std::string text;
  std::string hint;
  // The text is the reason that another rank, or Abort(), gave for stopping the whole group.
  bool stopped = false;
  // A deadline has passed, and nothing else is known.
  bool no_answer = false;
};

// The parts of an Error's message.
Problem AsProblem(const std::exception& error);

}  // namespace ullage::comm
