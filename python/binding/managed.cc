// ullage/managed.h: bytes of parameters for code that uses no operator.
#include "ullage/managed.h"

#include <ATen/core/Tensor.h>

#include <memory>

#include "binding.h"

namespace ullage::binding {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void AddManaged(py::module_& module) {
  py::class_<Hold>(module, "Hold")
      .def(py::init<const at::Tensor&, bool>(), py::arg("tensor"), py::arg("write"), NoGil())
      .def("end", &Hold::End, NoGil());
  module.def("is_managed", &IsManaged, py::arg("tensor"));
  module.def("is_intercepted", &IsIntercepted, py::arg("tensor"));
}

}  // namespace ullage::binding
