#include "ullage/error.h"

namespace ullage {

Error::Error(const std::string& what_happened, const std::string& hint)
    : std::runtime_error(hint.empty() ? what_happened : what_happened + "\nhint: " + hint) {}

}  // namespace ullage
