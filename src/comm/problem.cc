#include "comm/problem.h"

namespace ullage::comm {

Problem AsProblem(const std::exception& error) {
  const std::string text = error.what();
  const std::string separator = "\nhint: ";
  const std::size_t at = text.find(separator);
  if (at == std::string::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + separator.size())};
}

}  // namespace ullage::comm
