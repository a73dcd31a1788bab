// What a training with a budget needs to know before it begins.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/arguments.h"
#include "cli/setup.h"
#include "ullage/engine.h"

namespace ullage::cli {

// Sets in `options` what a plan within ullage.device_memory keeps free for one forward and backward
// of the largest micro-batch, for a forward of the largest batch of the evaluations, and for what
// lies outside torch's allocator: predicted where the device was measured (DeviceModel), else
// measured now. Collective. Does nothing without a budget and on the CPU.
void KeepRoomForOperators(const TrainArguments& arguments, const TrainSetup& setup,
                          const std::shared_ptr<Ranks>& ranks, EngineOptions& options);

}  // namespace ullage::cli
