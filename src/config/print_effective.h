// The effective settings as lines for people.
#pragma once

#include <string>

#include "ullage/settings.h"

namespace ullage::config {

// The table printed at start: every setting with its value and source in three aligned columns,
// then a line for each key that has no effect. Ends in a newline.
std::string PrintEffective(const Settings& settings);

}  // namespace ullage::config
