// One parameter as a whole: its value, mean gradient or moment, put together from the ranks' slices
// and taken apart again.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint_state.h"
#include "engine/core.h"
#include "engine/saver.h"
#include "torchx/dtype.h"
#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage {
namespace {

constexpr std::uint32_t kWholeItem = 0x57000000;

// A run of elements that one rank can give, or that this rank has to take.
struct Run {
  int unit = 0;
  int rank = 0;
  std::int64_t offset = 0;  // in what the rank holds, or for gradients in its slice
  std::int64_t first = 0;   // of the parameter
  std::int64_t numel = 0;
};

struct Part {
  bool is_gradient = false;
  int moment = -1;  // -1: the value
};

int FindParameter(const plan::Plan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.parameters, name, &layout::ParameterSpec::name);
  if (found == plan.parameters.end()) {
    throw ConfigError(fmt::format("there is no parameter '{}'", name),
                      "names are those of the list that the engine was made with; a tied parameter "
                      "is known by its first name");
  }
  return static_cast<int>(found - plan.parameters.begin());
}

Part FindPart(const Engine::Core& core, int parameter, const std::string& part) {
  if (part == "value") return {};
  const std::vector<std::string> moments =
      engine::MomentNames(core.plan, core.settings.optimizer.type);
  const layout::ParameterSpec& spec = core.plan.parameters[static_cast<std::size_t>(parameter)];
  const auto moment = std::ranges::find(moments, part);
  if (part != "gradient" && moment == moments.end()) {
    throw ConfigError(fmt::format("the optimizer keeps no '{}'", part),
                      fmt::format("there are value, gradient{}{}", moments.empty() ? "" : ", ",
                                  fmt::join(moments, ", ")));
  }
  if (!spec.trainable) {
    throw ConfigError(fmt::format("parameter '{}' is frozen and has no {}", spec.name, part),
                      "ask for its value");
  }
  if (part == "gradient") return {.is_gradient = true};
  return {.moment = static_cast<int>(moment - moments.begin())};
}

// Every element of the parameter once, with the rank that has it in its slice.
std::vector<Run> RunsOf(const plan::Plan& plan, int parameter, bool of_slices) {
  std::vector<Run> runs;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      const plan::UnitPlan& unit = plan.units[u];
      const bool holds_slice =
          of_slices || unit.unit.sliced || unit.state == plan::StateShare::kSlice;
      const std::int64_t before = holds_slice ? 0 : rank * unit.unit.slice_numel;
      for (const layout::Piece& piece : layout::PiecesOfSlice(unit.unit, rank)) {
        if (piece.parameter != parameter || piece.numel == 0) continue;
        runs.push_back({static_cast<int>(u), rank, before + piece.slice_offset,
                        piece.parameter_offset, piece.numel});
      }
    }
  }
  return runs;
}

// The sums of this rank's slice of `unit` as a tensor over their memory.
at::Tensor SumsOf(Engine::Core& core, const Run& run) {
  const grads::UnitSums sums = core.gradients->Of(run.unit);
  const bool on_cuda = core.memory.OnCuda(core.plan.units[static_cast<std::size_t>(run.unit)].home);
  return torchx::View(sums.data + run.offset * ElementBytes(sums.dtype), {run.numel},
                      torchx::ToTorch(sums.dtype),
                      on_cuda ? core.memory.device() : c10::Device(c10::kCPU));
}

void CheckCanBeRead(Engine::Core& core, const Part& part, const std::string& name) {
  if (core.memory.is_dry()) {
    throw StateError("a dry run has no values", "ask an engine that trains");
  }
  core.gradients->EndOutsidePass();
  core.store->CheckBindings();
  core.host_updates->Finish();
  if (!part.is_gradient) return;
  if (core.backwards == 0) {
    throw StateError(fmt::format("parameter '{}' has no gradient: there was no backward pass since "
                                 "the last step",
                                 name),
                     "ask between the backward pass and the step");
  }
  core.gradients->Complete();
}

}  // namespace

at::Tensor Engine::ReadWhole(const std::string& parameter, const std::string& part) {
  Core& core = *core_;
  const at::NoGradGuard no_grad;
  const int index = FindParameter(core.plan, parameter);
  const Part what = FindPart(core, index, part);
  CheckCanBeRead(core, what, parameter);
  const layout::ParameterSpec& spec = core.plan.parameters[static_cast<std::size_t>(index)];
  at::Tensor whole = at::empty(spec.shape, at::kFloat);
  const at::Tensor flat = whole.view({-1});
  core.TellingOthers([&] {
    for (const Run& run : RunsOf(core.plan, index, what.is_gradient)) {
      const std::span<float> values(flat.data_ptr<float>() + run.first,
                                    static_cast<std::size_t>(run.numel));
      if (run.rank == core.ranks->rank()) {
        if (what.is_gradient) {
          flat.slice(0, run.first, run.first + run.numel).copy_(SumsOf(core, run));
        } else if (what.moment >= 0) {
          core.optimizer->LoadMoment(run.unit, what.moment, run.offset, values);
        } else {
          core.optimizer->LoadMaster(run.unit, run.offset, values);
        }
      }
      core.comm().Broadcast(std::as_writable_bytes(values), run.rank,
                            kWholeItem | static_cast<std::uint32_t>(index));
    }
  });
  if (what.is_gradient) whole.mul_(1 / (core.accumulation() * core.scaler.scale()));
  return whole;
}

void Engine::WriteWhole(const std::string& parameter, const std::string& part,
                        const at::Tensor& values) {
  Core& core = *core_;
  const at::NoGradGuard no_grad;
  const int index = FindParameter(core.plan, parameter);
  const Part what = FindPart(core, index, part);
  CheckCanBeRead(core, what, parameter);
  const layout::ParameterSpec& spec = core.plan.parameters[static_cast<std::size_t>(index)];
  if (values.sizes() != c10::IntArrayRef(spec.shape)) {
    throw ConfigError(
        fmt::format("parameter '{}' has shape [{}], its new {} [{}]", parameter,
                    fmt::join(spec.shape, ", "), part, fmt::join(values.sizes(), ", ")),
        "pass a tensor of the parameter's shape");
  }
  at::Tensor whole = values.detach().to(at::kCPU, at::kFloat).contiguous();
  if (what.is_gradient) whole = at::mul(whole, core.accumulation() * core.scaler.scale());
  const at::Tensor flat = whole.view({-1});
  core.TellingOthers([&] {
    // Nobody reads old weights beyond the exchange.
    if (part == "value") {
      core.store->EndReading();
      core.comm().Barrier(kWholeItem | static_cast<std::uint32_t>(index));
      core.store->BeginUpdate(/*frozen_too=*/true);
    }
    if (what.is_gradient) {
      for (const Run& run : RunsOf(core.plan, index, /*of_slices=*/true)) {
        if (run.rank != core.ranks->rank()) continue;
        SumsOf(core, run).copy_(flat.slice(0, run.first, run.first + run.numel));
        core.gradients->NoteWritten(run.unit);
      }
    } else if (const engine::HeldRange held =
                   engine::HeldRangeOf(core.plan, core.ranks->rank(), index);
               held.unit >= 0 && held.end > held.begin) {
      const std::span<const float> own(flat.const_data_ptr<float>() + held.begin,
                                       static_cast<std::size_t>(held.end - held.begin));
      core.saver->BeforeChange(held.unit);
      if (what.moment >= 0) {
        core.optimizer->StoreMoment(held.unit, what.moment, held.held_offset, own);
      } else {
        core.optimizer->StoreMaster(held.unit, held.held_offset, own);
      }
    }
    if (part == "value") {
      for (std::size_t u = 0; u < core.plan.units.size(); ++u) {
        core.store->Publish(static_cast<int>(u));
      }
      core.store->EndUpdate();
    }
  });
}

}  // namespace ullage
