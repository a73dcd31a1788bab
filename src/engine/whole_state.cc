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

using engine::WrittenPiece;

struct Part {
  int parameter = 0;
  bool is_gradient = false;
  int moment = -1;  // -1: the value
};

Part FindPart(const Engine::Core& core, const std::string& name, const std::string& part) {
  const int parameter = engine::FindParameter(core.plan, name);
  if (part == "value") return {.parameter = parameter};
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
  if (part == "gradient") return {.parameter = parameter, .is_gradient = true};
  return {.parameter = parameter, .moment = static_cast<int>(moment - moments.begin())};
}

// What rank `rank` has of the parameter in its slices.
std::vector<WrittenPiece> PiecesOf(const plan::Plan& plan, int rank, int parameter) {
  std::vector<WrittenPiece> pieces = engine::PiecesWrittenBy(plan, rank);
  std::erase_if(pieces, [&](const WrittenPiece& piece) { return piece.parameter != parameter; });
  return pieces;
}

// The sums of this rank's slice of `unit` as a tensor over their memory.
at::Tensor SumsOf(Engine::Core& core, const WrittenPiece& piece) {
  const grads::UnitSums sums = core.gradients->Of(piece.unit);
  const bool on_cuda =
      core.memory.OnCuda(core.plan.units[static_cast<std::size_t>(piece.unit)].home);
  return torchx::View(sums.data + piece.slice_offset * ElementBytes(sums.dtype), {piece.numel},
                      torchx::ToTorch(sums.dtype),
                      on_cuda ? core.memory.device() : c10::Device(c10::kCPU));
}

// What is asked for, when it can be read and written now.
Part Ask(Engine::Core& core, const std::string& name, const std::string& asked) {
  const Part part = FindPart(core, name, asked);
  if (core.memory.is_dry()) {
    throw StateError("a dry run has no values", "ask an engine that trains");
  }
  core.gradients->EndOutsidePass();
  core.store->CheckBindings();
  core.host_updates->Finish();
  if (!part.is_gradient) return part;
  if (core.backwards == 0) {
    throw StateError(fmt::format("parameter '{}' has no gradient: there was no backward pass since "
                                 "the last step",
                                 name),
                     "ask between the backward pass and the step");
  }
  core.gradients->Complete();
  return part;
}

std::uint32_t ItemOf(const Part& part) {
  return kWholeItem | static_cast<std::uint32_t>(part.parameter);
}

}  // namespace

at::Tensor Engine::ReadWhole(const std::string& parameter, const std::string& part) {
  Core& core = *core_;
  const at::NoGradGuard no_grad;
  const Part what = Ask(core, parameter, part);
  at::Tensor whole =
      at::empty(core.plan.parameters[static_cast<std::size_t>(what.parameter)].shape, at::kFloat);
  const at::Tensor flat = whole.view({-1});
  core.TellingOthers([&] {
    for (int rank = 0; rank < core.plan.world_size; ++rank) {
      for (const WrittenPiece& piece : PiecesOf(core.plan, rank, what.parameter)) {
        const at::Tensor own = flat.slice(0, piece.first, piece.first + piece.numel);
        const std::span<float> values(own.data_ptr<float>(), static_cast<std::size_t>(piece.numel));
        if (rank != core.ranks->rank()) {
          // Comes with the exchange below.
        } else if (what.is_gradient) {
          own.copy_(SumsOf(core, piece));
        } else if (what.moment >= 0) {
          core.optimizer->LoadMoment(piece.unit, what.moment, piece.held_offset, values);
        } else {
          core.optimizer->LoadMaster(piece.unit, piece.held_offset, values);
        }
        core.comm().Broadcast(std::as_writable_bytes(values), rank, ItemOf(what));
      }
    }
  });
  if (what.is_gradient) whole.mul_(1 / (core.accumulation() * core.scaler.scale()));
  return whole;
}

void Engine::WriteWhole(const std::string& parameter, const std::string& part,
                        const at::Tensor& values) {
  Core& core = *core_;
  const at::NoGradGuard no_grad;
  const Part what = Ask(core, parameter, part);
  const layout::ParameterSpec& spec =
      core.plan.parameters[static_cast<std::size_t>(what.parameter)];
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
      core.comm().Barrier(ItemOf(what));
      core.store->BeginUpdate(/*frozen_too=*/true);
    }
    if (what.is_gradient) {
      for (const WrittenPiece& piece : PiecesOf(core.plan, core.ranks->rank(), what.parameter)) {
        SumsOf(core, piece).copy_(flat.slice(0, piece.first, piece.first + piece.numel));
        core.gradients->NoteWritten(piece.unit, what.parameter);
      }
    } else if (const engine::HeldRange held =
                   engine::HeldRangeOf(core.plan, core.ranks->rank(), what.parameter);
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
