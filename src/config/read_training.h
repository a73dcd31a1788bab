// The optimizer and scheduler sections as structs.
#pragma once

#include "config/flat_settings.h"
#include "config/types.h"
#include "ullage/settings.h"

namespace ullage::config {

// Both throw ConfigError for what the parameters say together, and add lines of "no effect".
OptimizerSettings ReadOptimizer(FlatSettings& file, const Types& types);
SchedulerSettings ReadScheduler(FlatSettings& file, const Types& types);

}  // namespace ullage::config
