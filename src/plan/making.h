// The steps by which a plan is made, for the files of this room.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace ullage::plan {

// The units of `parameters`, with everything at home on the device; but where `offload_weights` the
// weights that are gathered are at home on the host.
std::vector<UnitPlan> MakeUnitPlans(const Settings& settings,
                                    const std::vector<layout::ParameterSpec>& parameters,
                                    const Target& target, bool offload_weights);

// Which units have their state on the host or on disk: the share that offload_optimizer.ratio says,
// from the end of the model. A forward uses those last, so that their update has the time of what
// comes before; and a backward gives their gradients first.
void PlaceState(const Settings& settings, Plan& plan);

// The buffers that units share, for the units and homes that `plan` has now.
void SizeBuffers(const Settings& settings, const Target& target, Plan& plan);

// Keeps the plan within ullage.device_memory. Where the settings have no offload section, what does
// not fit goes to the host; an offload section is obeyed and only checked.
void FitToBudget(const Settings& settings, const Target& target, Plan& plan);

}  // namespace ullage::plan
