// How an engine begins: the plan is made, buffers are allocated, and the model's parameters are
// taken over, each rank keeping only what it owns.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "base/bytes.h"
#include "base/parallel.h"
#include "engine/core.h"
#include "engine/device_choice.h"
#include "engine/recorded_passes.h"
#include "engine/saver.h"
#include "memory/trace.h"
#include "torchx/device.h"
#include "torchx/meta_kernels.h"
#include "ullage/error.h"

namespace ullage {
namespace {

using engine::DistinctParameter;
using engine::HeldRange;

// Values travel in pieces of this many elements.
constexpr std::int64_t kPieceNumel = 256 << 10;
constexpr std::uint32_t kAdoptItem = 0x41000000;
constexpr std::uint32_t kBudgetItem = 0x42000000;

DType WeightDtype(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return DType::kFloat32;
    case Precision::kBFloat16:
      return DType::kBFloat16;
    case Precision::kFloat16:
      return DType::kFloat16;
  }
  return DType::kFloat32;
}

// `ignored_parameters`: what matches stays whole on every rank.
void MarkIgnored(const Settings& settings, const ParameterList& list,
                 std::vector<layout::ParameterSpec>& specs, std::vector<std::string>& notes) {
  std::vector<layout::ParameterSpec> buffers;
  for (const std::string& name : list.entries().buffers) {
    buffers.push_back({});
    buffers.back().name = name;
  }
  for (const std::string& pattern : settings.ignored_parameters) {
    const std::vector<bool> matches = optim::Matches(pattern, "ignored_parameters", specs);
    for (std::size_t i = 0; i < specs.size(); ++i) specs[i].stays_whole |= matches[i];
    if (std::ranges::count(matches, true) > 0) continue;
    if (std::ranges::count(optim::Matches(pattern, "ignored_parameters", buffers), true) == 0) {
      throw ConfigError(
          fmt::format("ignored_parameters: '{}' matches no parameter and no buffer", pattern),
          "correct the pattern or take it out");
    }
    notes.push_back(
        fmt::format("ignored_parameters '{}': no effect, because it matches only "
                    "buffers, and buffers are never sliced",
                    pattern));
  }
}

// Where operators run.
memory::Place PlaceOf(const EngineOptions& options, const Ranks& ranks,
                      std::vector<std::string>& notes) {
  if (!options.cuda) return memory::Place::kHost;
  if (options.dry_run) return memory::Place::kCuda;
  if (std::string shared = engine::UseDeviceOf(ranks); !shared.empty()) {
    notes.push_back(std::move(shared));
  }
  return memory::Place::kCuda;
}

class Adoption {
 public:
  Adoption(Engine::Core& core, WeightSource* source) : core_(core), source_(source) {}

  void Run() {
    for (std::size_t p = 0; p < core_.parameters.size(); ++p) {
      const int index = static_cast<int>(p);
      if (!core_.memory.is_dry()) TakeValues(index);
      core_.store->Bind(index, core_.parameters[p].tensors);
      if (core_.parameters[p].spec.trainable && core_.parameters[p].spec.numel > 0) {
        core_.gradients->Attach(index, core_.parameters[p].tensors.front());
      }
    }
    for (std::size_t unit = 0; unit < core_.plan.units.size(); ++unit) {
      core_.store->Publish(static_cast<int>(unit));
    }
    core_.store->EndUpdate();
  }

 private:
  void TakeValues(int index) {
    const DistinctParameter& parameter = core_.parameters[static_cast<std::size_t>(index)];
    const HeldRange held = engine::HeldRangeOf(core_.plan, core_.ranks->rank(), index);
    if (held.unit < 0) return;
    const memory::Buffer piece = core_.memory.Allocate(
        memory::Tag::kData, {4 * std::min(kPieceNumel, parameter.spec.numel), 0},
        plan::Tier::kHost);
    if (parameter.tensors.front().is_meta()) {
      ReadFromSource(parameter, held, piece);
    } else {
      BroadcastFromFirstRank(index, parameter, held, piece);
    }
  }

  void ReadFromSource(const DistinctParameter& parameter, const HeldRange& held,
                      const memory::Buffer& piece) {
    if (source_ == nullptr) {
      throw ConfigError(fmt::format("parameter '{}' is on the Meta device and has no values",
                                    parameter.spec.name),
                        "pass EngineOptions::weights");
    }
    for (std::int64_t first = held.begin; first < held.end; first += kPieceNumel) {
      const auto count = static_cast<std::size_t>(std::min(kPieceNumel, held.end - first));
      const std::span<float> values(piece.as<float>(), count);
      source_->Read(parameter.spec.name, parameter.spec.shape, first, values);
      Keep(held, first, values);
    }
  }

  // Ranks may have initialised differently; the first one's values hold everywhere.
  void BroadcastFromFirstRank(int index, const DistinctParameter& parameter, const HeldRange& held,
                              const memory::Buffer& piece) {
    at::Tensor values;
    if (core_.ranks->rank() == 0) {
      values = parameter.tensors.front().detach().to(at::kCPU, at::kFloat).contiguous();
    }
    for (std::int64_t first = 0; first < parameter.spec.numel; first += kPieceNumel) {
      const std::int64_t count = std::min(kPieceNumel, parameter.spec.numel - first);
      const std::span<float> part(piece.as<float>(), static_cast<std::size_t>(count));
      if (values.defined()) {
        std::memcpy(part.data(), values.const_data_ptr<float>() + first, part.size_bytes());
      }
      core_.comm().Broadcast(std::as_writable_bytes(part), 0,
                             kAdoptItem | static_cast<std::uint32_t>(index));
      const std::int64_t begin = std::max(first, held.begin);
      const std::int64_t end = std::min(first + count, held.end);
      if (begin >= end) continue;
      Keep(held, begin,
           part.subspan(static_cast<std::size_t>(begin - first),
                        static_cast<std::size_t>(end - begin)));
    }
  }

  // Elements from `first` of the parameter.
  void Keep(const HeldRange& held, std::int64_t first, std::span<const float> values) {
    core_.optimizer->StoreMaster(held.unit, held.held_offset + first - held.begin, values);
  }

  Engine::Core& core_;
  WeightSource* const source_;
};

}  // namespace

namespace engine {

HeldRange HeldRangeOf(const plan::Plan& plan, int rank, int parameter) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    for (const layout::Member& member : unit.unit.members) {
      if (member.parameter != parameter) continue;
      const int index = static_cast<int>(u);
      if (!unit.unit.sliced && unit.state != plan::StateShare::kSlice) {
        return {index, 0, member.numel, member.offset};
      }
      for (const layout::Piece& piece : layout::PiecesOfSlice(unit.unit, rank)) {
        if (piece.parameter != parameter) continue;
        return {index, piece.parameter_offset, piece.parameter_offset + piece.numel,
                piece.slice_offset};
      }
      return {index, 0, 0, 0};
    }
  }
  return {};
}

}  // namespace engine

Engine::Core::Core(const ParameterList& list, Settings given, std::shared_ptr<Ranks> given_ranks,
                   const EngineOptions& options)
    : settings(std::move(given)),
      ranks(std::move(given_ranks)),
      batch_sizes(settings.ResolveBatchSizes(ranks->world_size())),
      seed(options.seed),
      memory(PlaceOf(options, *ranks, notes), options.dry_run),
      cap(settings.ullage.device_memory, memory.is_cuda() && !memory.is_dry()),
      parameters(engine::FindDistinct(list, WeightDtype(settings.precision))),
      buffers(list.entries().buffer_tensors),
      schedule(settings.scheduler, settings.optimizer.lr),
      scaler(settings.precision == Precision::kFloat16 ? settings.loss_scale
                                                       : LossScaleSettings{.loss_scale = 1}),
      exceptions_at_start(std::uncaught_exceptions()) {
  memory.ledger().Tell(options.trace);
  TellingOthers([&] {
    if (options.dry_run) torchx::InstallMetaKernels();
    if (memory.is_cuda()) torchx::PreferRepeatableKernels();
    SetWorkers(memory.is_cuda() ? UsableCores() : at::get_num_threads());
    std::vector<layout::ParameterSpec> specs;
    for (const DistinctParameter& parameter : parameters) specs.push_back(parameter.spec);
    MarkIgnored(settings, list, specs, notes);
    if (settings.zero.offload_param.device != OffloadDevice::kNone &&
        settings.zero.offload_optimizer.device == OffloadDevice::kNone) {
      notes.push_back(
          "offload_param without offload_optimizer: weights are updated where they are at home, so "
          "the optimizer state of those on the host is on the host, too");
    }
    plan::Target target{ranks->world_size(), comm().AllLocal(), options.cuda};
    target.save_buffer_bytes = options.save_buffer_bytes;
    if (settings.ullage.device_memory) AskForTheRestOfTheDevice(options, target);
    plan = plan::MakePlan(settings, std::move(specs), target);
    for (std::string& line : plan.BudgetLines()) notes.push_back(std::move(line));
    cap.Set(target.outside_bytes);
    window_plan = plan::MakeWindowPlan(plan);
    memory::PhaseScope phase(memory.ledger(), memory::Phase::kLoad);
    if (memory.is_cuda() && !memory.is_dry()) AllocateArenas();
    window = std::make_unique<comm::TieredWindow>(comm(), window_plan, memory.device());
    groups = options.groups.empty()
                 ? optim::MakeGroups(settings, options.default_no_decay, plan.parameters)
                 : optim::MakeNamedGroups(options.groups, plan.parameters);
    store = std::make_unique<params::ParameterStore>(plan, window_plan, comm(), *window, memory);
    gradients =
        std::make_unique<grads::GradientReducer>(plan, window_plan, comm(), *window, memory);
    gradients->ExpectPasses(batch_sizes.accumulation_steps);
    ListenToOutsidePasses();
    norm = std::make_unique<optim::NormMeter>(plan, *gradients, comm(), memory);
    disk_state = std::make_unique<optim::DiskState>(plan, ranks->rank(), StatePlace(), memory);
    NoteStateOnDisk();
    optimizer = std::make_unique<optim::SliceOptimizer>(plan, settings.optimizer, groups, *store,
                                                        *gradients, *disk_state, comm(), memory);
    host_updates =
        std::make_unique<optim::HostUpdates>(plan, *store, *gradients, *optimizer, memory);
    store->OnWrite([this](int unit, std::int64_t first, std::int64_t numel, const void* before) {
      optimizer->AdoptWrite(unit, first, numel, before);
    });
    memory.UseHostArena(nullptr);
    memory.UseDeviceArena(nullptr);
    saver = std::make_unique<engine::Saver>(*this);
    recorded = std::make_unique<engine::RecordedPasses>(*this);
    store->OnBeforeWrite([this](int unit) {
      if (saver) saver->BeforeChange(unit);
    });
    Adoption(*this, options.weights).Run();
    cap.Renew(plan.world_size > 1);
  });
}

// What is not the engine's. The plan is the same on all ranks, so the one with most decides.
void Engine::Core::AskForTheRestOfTheDevice(const EngineOptions& options, plan::Target& target) {
  std::int64_t bytes[] = {options.operator_bytes,
                          options.outside_bytes ? *options.outside_bytes : cap.MeasureOutside()};
  comm().AllReduceMax(bytes, kBudgetItem);
  target.operator_bytes = bytes[0];
  target.outside_bytes = bytes[1];
  if (target.operator_bytes > 0) return;
  notes.emplace_back(
      "ullage.device_memory: nothing is kept for what operators hold (activations, workspaces), "
      "which nobody has measured: EngineOptions::operator_bytes, --operator-bytes");
}

// What the plan has on a device and on its host: one piece of each, the host's page-locked.
void Engine::Core::AllocateArenas() {
  const auto own_bytes = [this](plan::Tier tier) {
    return plan::BytesBesideWindow(plan, window_plan, ranks->rank(), tier);
  };
  device_arena.emplace(own_bytes(plan::Tier::kDevice));
  memory.UseDeviceArena([this](std::int64_t wanted) { return device_arena->Allocate(wanted); });
  const std::int64_t bytes = own_bytes(plan::Tier::kHost);
  const OffloadSettings& state = settings.zero.offload_optimizer;
  const OffloadSettings& weights = settings.zero.offload_param;
  const auto wants_pageable = [](const OffloadSettings& offload) {
    return offload.device != OffloadDevice::kNone && !offload.pin_memory;
  };
  tiers::HostArenaOptions options;
  options.name = "offloaded state";
  options.threads = UsableCores();
  if (!wants_pageable(state) && !wants_pageable(weights)) {
    options.pin = torchx::LockHostMemory;
    options.unpin = [](void* data, std::size_t) { torchx::UnlockHostMemory(data); };
  }
  arena.emplace(bytes, options);
  memory.UseHostArena([this](std::int64_t wanted) {
    return arena->data() + arena->Allocate(wanted, layout::kAlignment);
  });
}

void Engine::Core::NoteStateOnDisk() {
  if (settings.zero.offload_optimizer.device != OffloadDevice::kNvme) return;
  const plan::TagBytes bytes = plan.BytesOfRank(ranks->rank(), plan::Tier::kDisk);
  const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  notes.push_back(all > 0 ? fmt::format("optimizer state on disk: {} of each rank in {}",
                                        FormatBytes(all), StatePlace().folder)
                          : "optimizer state on disk: none, because this optimizer keeps no state "
                            "beside the weights, or offload_optimizer.ratio moves none");
}

optim::DiskPlace Engine::Core::StatePlace() const {
  const std::string& folder = settings.zero.offload_optimizer.nvme_path;
  const UllageSettings& ullage = settings.ullage;
  if (folder.empty() && ullage.disk_path) {
    return {*ullage.disk_path, "ullage.disk.path", ullage.disk_limit};
  }
  return {folder, "zero_optimization.offload_optimizer.nvme_path", ullage.disk_limit};
}

Engine::Core::~Core() {
  if (std::uncaught_exceptions() > exceptions_at_start) {
    ranks->Abort(fmt::format("rank {} ended with an error", ranks->rank()));
  }
  saver.reset();  // what is under way reads all of the rest
}

Engine::Engine(ParameterList parameters, Settings settings, EngineOptions options)
    : Engine(std::move(parameters), settings,
             Ranks::FromEnvironment(std::chrono::seconds(settings.ullage.timeout_seconds)),
             std::move(options)) {}

Engine::Engine(ParameterList parameters, Settings settings, std::shared_ptr<Ranks> ranks,
               EngineOptions options)
    : core_(std::make_unique<Core>(parameters, std::move(settings), std::move(ranks), options)) {}

Engine::~Engine() = default;

}  // namespace ullage
