// How long a step takes: what it has to do, by a dry run, at the rates of a machine.
#pragma once

#include <cstdint>

#include "memory/work_log.h"
#include "ullage/planner.h"

namespace ullage::planner {

// `steps`: how many the log is of, which may have had fewer micro-steps than the `micro_steps` of a
// real one. `is_recorded`: these are launched as a whole.
StepTime EstimateStep(const memory::WorkLog& log, std::int64_t steps, std::int64_t micro_steps,
                      bool is_recorded, const MachineRates& rates);

// Seconds of one kernel.
double KernelSeconds(const torchx::OperatorWork& work, const MachineRates& rates);

}  // namespace ullage::planner
