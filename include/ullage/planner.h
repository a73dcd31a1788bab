// What a run will hold, told before it: the engine itself, on tensors without memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ullage/engine.h"
#include "ullage/export.h"
#include "ullage/ranks.h"
#include "ullage/settings.h"

namespace ullage {

// Bytes of one rank where operators run, at the moment of a phase when they are most.
struct PhaseBytes {
  std::string phase;  // "load", "forward", "backward", "step"
  std::int64_t total = 0;
  // What is above 0: the engine's by the tags of the plan, then the operators' as "inputs" (there
  // before the forward), "activations" (kept from forward to backward) and "temporaries".
  std::vector<std::pair<std::string, std::int64_t>> by_tag;
  // The operator whose request made it so, and the parameter that was used last before. Empty when
  // it was the engine.
  std::string operation, parameter;
};

// Tensors of operators that were held at the highest peak; those that the same operator made beside
// the same parameter count together, with those of layers alike ("layers.*.mlp.weight").
struct HeldTensors {
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  std::string use;  // "inputs", "activations", "temporaries"
  std::string operation, parameter;
};

// Seconds of a step, as a machine of `MachineRates` needs them.
struct StepTime {
  double forward = 0;  // of all micro-steps together, with what of the update the first waits for
  double backward = 0;
  double step = 0;  // the update, as far as nothing goes on beside it
  // What the most of it waits for: "operators", "launches" (of kernels, by the CPU), "copies"
  // (between host and device), "the host" (its updates and sums), "disk" or "peers".
  std::string bound;

  double total() const { return forward + backward + step; }
};

struct MemoryPrediction {
  std::vector<PhaseBytes> phases;    // in their order; those that there were
  std::vector<HeldTensors> largest;  // largest first
  std::int64_t peak = 0;             // of all phases: as was asked for, without any rounding
  // On CUDA, of torch's allocator: what it gives out and what it reserves, as
  // torch.cuda.max_memory_allocated and max_memory_reserved tell them. On the CPU both are `peak`.
  std::int64_t allocated = 0;
  std::int64_t reserved = 0;
  // On CUDA: what operators reserve of it at most, beside what the plan has. For a run within
  // ullage.device_memory this is EngineOptions::operator_bytes.
  std::int64_t operators = 0;
  std::int64_t outside = 0;  // of the device, outside torch's allocator: context, modules
  std::int64_t host = 0;     // by the plan: bytes with a home on the host beside CUDA
  std::int64_t disk = 0;
  std::optional<StepTime> time;  // on CUDA

  std::int64_t device() const { return reserved + outside; }
};

// How fast a device and its host are. Operations and bytes are those of a second.
struct MachineRates {
  struct Attention {
    double forward = 0, gradient = 0;
  };
  double product16 = 0, product32 = 0;  // a multiplication and an addition are two operations
  // Kernels of attention: the flash one (at 128 elements for a head), the memory-efficient one in
  // 16 bit and in fp32.
  Attention flash, efficient16, efficient32;
  double memory = 0, cache = 0;  // of kernels that pass much, and of those that stay in the cache
  double update = 0;             // of an optimizer's step and of sums of gradients on the device
  double copies = 0;             // from page-locked memory to the device, or back
  double peers = 0;              // from other ranks
  double host_update = 0;        // of state on the host, by its cores and through the device
  double host_sums = 0, host_norm = 0;
  double disk = 0;
  double kernel = 0;  // seconds that each takes at least
  double call = 0;    // seconds of the CPU for each operator and node of the graph
};

// A CUDA device to predict for.
struct DeviceModel {
  std::string name;
  std::int64_t memory = 0;  // that a process can get, its context included
  int multiprocessors = 0;  // kernels split their work by them
  // Context and modules; what page-locked host memory takes comes to it (OutsideBytes).
  std::int64_t outside = 0;
  // Of matrix products, in torch's allocator, of each thread that makes some (the caller's and
  // autograd's): cuBLAS's, and cuBLASLt's once a bias is added within a product.
  std::int64_t workspace = 0, bias_workspace = 0;
  MachineRates rates;
  bool is_measured = false;  // all of it; else derived from the H200's, which was
};

// On the device outside torch's allocator, with `host` bytes of the host page-locked: 8 bytes of
// page table for each 4 KiB page, as measured.
ULLAGE_API std::int64_t OutsideBytes(const DeviceModel& device, std::int64_t host);

// By name ("a100-40g", "h200", ...). Throws ConfigError that lists them.
ULLAGE_API const DeviceModel& FindDevice(const std::string& name);
ULLAGE_API const std::vector<DeviceModel>& KnownDevices();
// Of a device that is there: the known one that its driver's name ("NVIDIA A100-SXM4-40GB") and
// memory tell of, else one that is taken to be like the H200, and not measured.
ULLAGE_API DeviceModel ModelOfDevice(const std::string& name, std::int64_t memory,
                                     int multiprocessors);

// Runs `run`, a few micro-steps and a Step, with an engine in a dry run. `parameters` are those of
// a model on the Meta device, of no use afterwards; `ranks` may be imagined. With
// `options.cuda`, `device` is what Meta stands for. Where ullage.device_memory is set and
// options.operator_bytes is not, operators are predicted first and the plan keeps their bytes free.
// Throws OutOfMemoryError where no plan keeps within it.
ULLAGE_API MemoryPrediction Predict(const std::function<ParameterList()>& parameters,
                                    const Settings& settings, const std::shared_ptr<Ranks>& ranks,
                                    EngineOptions options, const DeviceModel& device,
                                    const std::function<void(Engine&)>& run);

// Follows what operators of the current thread, and backward passes that it starts, allocate on the
// CPU or on CUDA, of anybody's training loop: phases "forward" (with gradients recorded),
// "backward" and "step" (without gradients: optimizers, evaluation). What was there before is not
// counted.
class ULLAGE_API MemoryWatch {
 public:
  explicit MemoryWatch(bool cuda);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  // A parameter that reports may name.
  void Name(const at::Tensor& tensor, std::string name);
  // Ends it. On the same thread, once.
  MemoryPrediction Stop();

 private:
  struct Followed;
  std::unique_ptr<Followed> followed_;
};

}  // namespace ullage
