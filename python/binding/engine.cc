// ullage::Engine and its settings.
#include "ullage/engine.h"

#include <ATen/core/Tensor.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>

#include "binding.h"

namespace ullage::binding {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

namespace {

using Bytes = std::vector<std::pair<std::string, std::int64_t>>;

py::dict ToDict(const Bytes& bytes) {
  py::dict dict;
  for (const auto& [tag, count] : bytes) dict[py::str(tag)] = count;
  return dict;
}

// Reads weights through a Python callable(name, shape, first, count), which returns a flat fp32
// tensor on the CPU.
class CallableSource final : public WeightSource {
 public:
  explicit CallableSource(py::function read) : read_(std::move(read)) {}
  ~CallableSource() override {
    const py::gil_scoped_acquire gil;
    read_ = py::function();
  }

  void Read(const std::string& name, std::span<const std::int64_t> shape, std::int64_t first,
            std::span<float> values) override {
    const py::gil_scoped_acquire gil;
    const std::vector<std::int64_t> sizes(shape.begin(), shape.end());
    const auto tensor = read_(name, sizes, first, values.size()).cast<at::Tensor>();
    if (tensor.numel() != static_cast<std::int64_t>(values.size()) ||
        tensor.scalar_type() != at::kFloat || !tensor.is_contiguous() || !tensor.is_cpu()) {
      throw ConfigError("the weights of '" + name + "' are no flat fp32 tensor on the CPU of " +
                            std::to_string(values.size()) + " elements",
                        "return one from the source of weights");
    }
    std::memcpy(values.data(), tensor.const_data_ptr<float>(), values.size_bytes());
  }

 private:
  py::function read_;
};

std::unique_ptr<Engine> MakeEngine(ParameterList& parameters, const Settings& settings,
                                   std::shared_ptr<Ranks> ranks, std::uint64_t seed,
                                   const py::object& weights, std::vector<std::string> no_decay,
                                   std::vector<NamedGroup> groups, bool cuda, bool dry_run) {
  EngineOptions options;
  options.seed = seed;
  options.default_no_decay = std::move(no_decay);
  options.groups = std::move(groups);
  options.cuda = cuda;
  options.dry_run = dry_run;
  std::optional<CallableSource> source;
  if (!weights.is_none()) options.weights = &source.emplace(weights.cast<py::function>());
  const py::gil_scoped_release no_gil;
  return std::make_unique<Engine>(std::move(parameters), settings, std::move(ranks),
                                  std::move(options));
}

// What the forward returns may be anything: it stays in Python.
py::object Forward(Engine& engine, const py::function& forward) {
  py::object result;
  engine.Forward([&] {
    result = forward();
    return at::Tensor();
  });
  return result;
}

at::Tensor Backward(Engine& engine, const std::optional<at::Tensor>& loss, bool retain_graph) {
  return engine.Backward(loss.value_or(at::Tensor()), retain_graph);
}

void AddSettings(py::module_& module) {
  py::class_<BatchSizes>(module, "BatchSizes")
      .def_readonly("train_batch", &BatchSizes::train_batch)
      .def_readonly("micro_batch", &BatchSizes::micro_batch)
      .def_readonly("accumulation_steps", &BatchSizes::accumulation_steps);
  py::enum_<Precision>(module, "Precision")
      .value("fp32", Precision::kFloat32)
      .value("bf16", Precision::kBFloat16)
      .value("fp16", Precision::kFloat16);
  py::enum_<OptimizerType>(module, "OptimizerType")
      .value("adam", OptimizerType::kAdam)
      .value("sgd", OptimizerType::kSgd);
  py::class_<OptimizerSettings>(module, "OptimizerSettings")
      .def_readwrite("type", &OptimizerSettings::type)
      .def_readwrite("lr", &OptimizerSettings::lr)
      .def_readwrite("weight_decay", &OptimizerSettings::weight_decay)
      .def_readwrite("beta1", &OptimizerSettings::beta1)
      .def_readwrite("beta2", &OptimizerSettings::beta2)
      .def_readwrite("eps", &OptimizerSettings::eps)
      .def_readwrite("bias_correction", &OptimizerSettings::bias_correction)
      .def_readwrite("adam_w_mode", &OptimizerSettings::adam_w_mode)
      .def_readwrite("momentum", &OptimizerSettings::momentum)
      .def_readwrite("dampening", &OptimizerSettings::dampening)
      .def_readwrite("nesterov", &OptimizerSettings::nesterov);
  py::class_<EffectiveSetting>(module, "EffectiveSetting")
      .def_readonly("key", &EffectiveSetting::key)
      .def_readonly("value", &EffectiveSetting::value)
      .def_readonly("source", &EffectiveSetting::source);
  py::class_<Settings>(module, "Settings")
      .def_static("from_text", &Settings::FromText, py::arg("json"), py::arg("origin"))
      .def_static("from_file", &Settings::FromFile, py::arg("path"))
      .def("resolve_batch_sizes", &Settings::ResolveBatchSizes, py::arg("world_size"))
      .def("effective", &Settings::Effective)
      .def_property_readonly("has_scheduler",
                             [](const Settings& self) {
                               return !std::holds_alternative<std::monostate>(self.scheduler);
                             })
      .def_property_readonly("stage", [](const Settings& self) { return self.zero.stage; })
      .def_property_readonly("timeout_seconds",
                             [](const Settings& self) { return self.ullage.timeout_seconds; })
      .def_readonly("no_effect", &Settings::no_effect)
      .def_readonly("given", &Settings::given)
      .def_readonly("precision", &Settings::precision)
      .def_readonly("gradient_clipping", &Settings::gradient_clipping)
      .def_readonly("steps_per_print", &Settings::steps_per_print)
      .def_readonly("dataloader_drop_last", &Settings::dataloader_drop_last)
      .def_readwrite("train_batch_size", &Settings::train_batch_size)
      .def_readwrite("train_micro_batch_size_per_gpu", &Settings::train_micro_batch_size_per_gpu)
      .def_readwrite("gradient_accumulation_steps", &Settings::gradient_accumulation_steps)
      .def_readwrite("optimizer", &Settings::optimizer);
}

void AddOptions(py::module_& module) {
  py::class_<Ranks, std::shared_ptr<Ranks>>(module, "Ranks")
      .def_static(
          "from_environment",
          [](std::int64_t timeout) {
            return Ranks::FromEnvironment(std::chrono::seconds(timeout));
          },
          py::arg("timeout_seconds"), NoGil())
      .def_static("imagined", &Ranks::Imagined, py::arg("rank"), py::arg("world_size"))
      .def_property_readonly("rank", &Ranks::rank)
      .def_property_readonly("world_size", &Ranks::world_size)
      .def(
          "broadcast",
          [](Ranks& self, at::Tensor tensor, int root) {
            if (!tensor.is_cpu() || !tensor.is_contiguous()) {
              throw ConfigError("only contiguous tensors on the CPU are sent", "call .cpu()");
            }
            self.Broadcast({static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}, root);
          },
          py::arg("tensor"), py::arg("root"), NoGil())
      .def("abort", &Ranks::Abort, py::arg("reason"), NoGil());
  py::class_<ParameterList>(module, "ParameterList")
      .def(py::init<>())
      .def("add", &ParameterList::Add, py::arg("name"), py::arg("tensor"))
      .def("add_buffer",
           py::overload_cast<const std::string&, const at::Tensor&>(&ParameterList::AddBuffer),
           py::arg("name"), py::arg("tensor"))
      .def("add_buffer_name", py::overload_cast<std::string>(&ParameterList::AddBuffer),
           py::arg("name"));
  py::class_<NamedGroup>(module, "NamedGroup")
      .def(py::init([](std::string name, std::vector<std::string> parameters, double lr,
                       double weight_decay) {
             return NamedGroup{std::move(name), std::move(parameters), lr, weight_decay};
           }),
           py::arg("name"), py::arg("parameters"), py::arg("lr"), py::arg("weight_decay"))
      .def_readonly("name", &NamedGroup::name)
      .def_readonly("parameters", &NamedGroup::parameters)
      .def_readonly("lr", &NamedGroup::lr)
      .def_readonly("weight_decay", &NamedGroup::weight_decay);
  py::class_<StepResult>(module, "StepResult")
      .def_readonly("applied", &StepResult::applied)
      .def_readonly("grad_norm", &StepResult::grad_norm)
      .def_readonly("clip_coef", &StepResult::clip_coef)
      .def_readonly("lr", &StepResult::lr)
      .def_readonly("loss_scale", &StepResult::loss_scale)
      .def_readonly("overflowed", &StepResult::overflowed);
  py::class_<CheckpointInfo>(module, "CheckpointInfo")
      .def_readonly("path", &CheckpointInfo::path)
      .def_readonly("applied_steps", &CheckpointInfo::applied_steps)
      .def_readonly("skipped_steps", &CheckpointInfo::skipped_steps)
      .def_readonly("world_size", &CheckpointInfo::world_size)
      .def_readonly("client_state", &CheckpointInfo::client_state);
  py::class_<EngineStatistics>(module, "EngineStatistics")
      .def_readonly("gathers", &EngineStatistics::gathers)
      .def_readonly("gathered_bytes", &EngineStatistics::gathered_bytes)
      .def_readonly("gathered_ahead", &EngineStatistics::gathered_ahead)
      .def_readonly("gather_overflows", &EngineStatistics::gather_overflows)
      .def_readonly("allocations", &EngineStatistics::allocations)
      .def_readonly("save_wait_ms", &EngineStatistics::save_wait_ms);
}

// Holds parameters present until `end`.
class Gathered {
 public:
  explicit Gathered(Engine::Gathered gathered) : gathered_(std::move(gathered)) {}
  void End() { gathered_.reset(); }

 private:
  std::optional<Engine::Gathered> gathered_;
};

}  // namespace

void AddEngine(py::module_& module) {
  AddSettings(module);
  AddOptions(module);
  py::class_<Gathered>(module, "Gathered").def("end", &Gathered::End, NoGil());
  py::class_<Engine>(module, "Engine")
      .def(py::init(&MakeEngine), py::arg("parameters"), py::arg("settings"), py::arg("ranks"),
           py::arg("seed") = 0, py::arg("weights") = py::none(),
           py::arg("no_decay") = std::vector<std::string>(),
           py::arg("groups") = std::vector<NamedGroup>(), py::arg("cuda") = false,
           py::arg("dry_run") = false)
      .def("forward", &Forward, py::arg("forward"))
      .def("backward", &Backward, py::arg("loss"), py::arg("retain_graph") = false, NoGil())
      .def("scale", &Engine::Scale, py::arg("loss"), NoGil())
      .def("step", &Engine::Step, NoGil())
      .def("clear_gradients", &Engine::ClearGradients, NoGil())
      .def("is_accumulation_boundary", &Engine::IsAccumulationBoundary)
      .def(
          "gather",
          [](Engine& self, const std::vector<std::string>& names, bool write) {
            return std::make_unique<Gathered>(self.Gather(names, write));
          },
          py::arg("names"), py::arg("write"), NoGil())
      .def("parameters_sha256", &Engine::ParametersSha256, NoGil())
      .def("read_whole", &Engine::ReadWhole, py::arg("parameter"), py::arg("part"), NoGil())
      .def("write_whole", &Engine::WriteWhole, py::arg("parameter"), py::arg("part"),
           py::arg("values"), NoGil())
      .def(
          "save_checkpoint",
          [](Engine& self, const std::string& folder, const std::string& client_state,
             std::int64_t keep, bool background, std::int64_t buffer_bytes) {
            SaveOptions options;
            options.client_state = client_state;
            options.keep = keep;
            options.background = background;
            options.buffer_bytes = buffer_bytes;
            return self.SaveCheckpoint(folder, options);
          },
          py::arg("folder"), py::arg("client_state") = "", py::arg("keep") = 0,
          py::arg("background") = false, py::arg("buffer_bytes") = 0, NoGil())
      .def("finish_saving", &Engine::FinishSaving, NoGil())
      .def(
          "load_checkpoint",
          [](Engine& self, const std::string& path, bool weights_only) {
            LoadOptions options;
            options.weights_only = weights_only;
            return self.LoadCheckpoint(path, options);
          },
          py::arg("path"), py::arg("weights_only") = false, NoGil())
      .def("groups", &Engine::groups)
      .def("set_accumulation_steps", &Engine::SetAccumulationSteps, py::arg("steps"), NoGil())
      .def("set_group", &Engine::SetGroup, py::arg("group"), py::arg("lr"), py::arg("weight_decay"),
           NoGil())
      .def_property_readonly("batch_sizes", &Engine::batch_sizes)
      .def_property_readonly("settings", &Engine::settings,
                             py::return_value_policy::reference_internal)
      .def_property_readonly("applied_steps", &Engine::applied_steps)
      .def_property_readonly("skipped_steps", &Engine::skipped_steps)
      .def_property_readonly("lr", &Engine::lr)
      .def_property_readonly("loss_scale", &Engine::loss_scale)
      .def_property_readonly("statistics", &Engine::statistics)
      .def("memory",
           [](const Engine& self) {
             const MemoryReport report = self.memory();
             py::dict dict;
             dict["now"] = ToDict(report.now);
             dict["peak"] = ToDict(report.peak);
             dict["peak_total"] = report.peak_total;
             dict["on_device"] = ToDict(report.on_device);
             return dict;
           })
      .def("planned_bytes", [](const Engine& self) { return ToDict(self.planned_bytes()); })
      .def("plan_text", &Engine::PlanText)
      .def("plan_json", &Engine::PlanJson)
      .def("start_lines", &Engine::StartLines);
}

}  // namespace ullage::binding
