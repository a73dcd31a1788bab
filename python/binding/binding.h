// What the parts of the binding share. Each part adds its names to the module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace ullage::binding {

void AddErrors(pybind11::module_& module);
void AddEngine(pybind11::module_& module);
void AddManaged(pybind11::module_& module);
void AddPlanner(pybind11::module_& module);

}  // namespace ullage::binding
