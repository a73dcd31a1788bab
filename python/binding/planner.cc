// Predictions, as dictionaries.
#include "ullage/planner.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <memory>

#include "binding.h"

namespace ullage::binding {

namespace py = pybind11;

namespace {

py::dict ToDict(const MemoryPrediction& prediction) {
  py::list phases, largest;
  for (const PhaseBytes& phase : prediction.phases) {
    py::dict tags;
    for (const auto& [tag, bytes] : phase.by_tag) tags[py::str(tag)] = bytes;
    py::dict entry;
    entry["phase"] = phase.phase;
    entry["bytes"] = phase.total;
    entry["by_tag"] = std::move(tags);
    entry["operation"] = phase.operation;
    entry["parameter"] = phase.parameter;
    phases.append(std::move(entry));
  }
  for (const HeldTensors& held : prediction.largest) {
    py::dict entry;
    entry["bytes"] = held.bytes;
    entry["count"] = held.count;
    entry["use"] = held.use;
    entry["operation"] = held.operation;
    entry["parameter"] = held.parameter;
    largest.append(std::move(entry));
  }
  py::dict dict;
  dict["peak"] = prediction.peak;
  dict["allocated"] = prediction.allocated;
  dict["reserved"] = prediction.reserved;
  dict["outside"] = prediction.outside;
  dict["device"] = prediction.device();
  dict["host"] = prediction.host;
  dict["disk"] = prediction.disk;
  dict["phases"] = std::move(phases);
  dict["largest"] = std::move(largest);
  return dict;
}

// `parameters` makes the model anew and lists it; `run` gets the engine. Both are called with the
// GIL, by this thread.
py::dict PredictDict(const py::function& parameters, const Settings& settings,
                     const std::shared_ptr<Ranks>& ranks, bool cuda, const std::string& device,
                     const py::function& run) {
  EngineOptions options;
  options.cuda = cuda;
  return ToDict(Predict(
      [&] {
        const py::object list = parameters();
        return std::move(list.cast<ParameterList&>());
      },
      settings, ranks, options, FindDevice(device),
      [&](Engine& engine) { run(py::cast(&engine, py::return_value_policy::reference)); }));
}

}  // namespace

void AddPlanner(py::module_& module) {
  module.def("predict", &PredictDict, py::arg("parameters"), py::arg("settings"), py::arg("ranks"),
             py::arg("cuda"), py::arg("device"), py::arg("run"));
  py::class_<MemoryWatch>(module, "MemoryWatch")
      .def(py::init<bool>(), py::arg("cuda"))
      .def("name", &MemoryWatch::Name, py::arg("tensor"), py::arg("name"))
      .def("stop", [](MemoryWatch& self) { return ToDict(self.Stop()); });
  module.def("device_bytes", [](const std::string& device) { return FindDevice(device).memory; });
}

}  // namespace ullage::binding
