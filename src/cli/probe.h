// What operators need on the device, measured before a training with a budget begins.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/arguments.h"
#include "cli/setup.h"
#include "ullage/engine.h"

namespace ullage::cli {

// EngineOptions::operator_bytes for the run: one forward and backward of its largest micro-batch,
// and a forward of the largest batch of its evaluations. Collective. 0 without
// ullage.device_memory and on the CPU, where nothing is run.
std::int64_t OperatorBytes(const TrainArguments& arguments, const TrainSetup& setup,
                           const std::shared_ptr<Ranks>& ranks, const EngineOptions& options);

}  // namespace ullage::cli
