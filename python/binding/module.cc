// ullage._C: conversions between Python and include/ullage, nothing else. What users see is the
// package around it.
#include "binding.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The engine of Ullage. Use the package `ullage` around it.";
  module.attr("version") = ULLAGE_VERSION;
  module.attr("torch_version") = ULLAGE_TORCH_VERSION;
  ullage::binding::AddErrors(module);
  ullage::binding::AddEngine(module);
  ullage::binding::AddManaged(module);
  ullage::binding::AddPlanner(module);
}
