// The errors of ullage/error.h as Python exceptions. Each is what Python calls such an error, too:
// a wrong setting is a ValueError, a file that fails an OSError.
#include "binding.h"
#include "ullage/error.h"

namespace ullage::binding {

namespace py = pybind11;

namespace {

// Made in order: translators are asked from the last to the first, so the base comes first.
template <typename Cpp>
void Add(py::module_& module, const char* name, const py::tuple& bases) {
  py::object type = py::reinterpret_steal<py::object>(
      PyErr_NewException((std::string("ullage.") + name).c_str(), bases.ptr(), nullptr));
  if (!type) throw py::error_already_set();
  module.attr(name) = type;
  static PyObject* const kept = type.release().ptr();
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Cpp& error) {
      PyErr_SetString(kept, error.what());
    }
  });
}

}  // namespace

void AddErrors(py::module_& module) {
  const auto builtin = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  Add<Error>(module, "Error", py::make_tuple(builtin(PyExc_RuntimeError)));
  const py::object base = module.attr("Error");
  Add<ConfigError>(module, "ConfigError", py::make_tuple(base, builtin(PyExc_ValueError)));
  Add<UnsupportedError>(module, "UnsupportedError",
                        py::make_tuple(base, builtin(PyExc_NotImplementedError)));
  Add<IoError>(module, "IoError", py::make_tuple(base));
  Add<CommError>(module, "CommError", py::make_tuple(base));
  Add<OutOfMemoryError>(module, "OutOfMemoryError", py::make_tuple(base));
  Add<StateError>(module, "StateError", py::make_tuple(base));
}

}  // namespace ullage::binding
