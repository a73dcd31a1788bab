// The zero_optimization section as a struct.
#pragma once

#include "config/flat_settings.h"
#include "ullage/settings.h"

namespace ullage::config {

// Throws ConfigError for what its keys say together, UnsupportedError for offloading to a disk, and
// adds lines of "no effect".
ZeroSettings ReadZero(FlatSettings& file);

}  // namespace ullage::config
