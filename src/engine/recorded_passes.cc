#include "engine/recorded_passes.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "torchx/profile.h"
#include "ullage/error.h"

namespace ullage::engine {
namespace {

// Each holds a few MiB on the host and on the device for its kernels' arguments.
constexpr std::size_t kMostPasses = 128;
constexpr std::int64_t kPassBytes = 8 << 20;

// Note [Room for recordings]
// All recordings share one pool of torch's allocator, which grows to what operators need for the
// largest of them. A micro-step of a shape that was not recorded yet runs beside it and needs as
// much again. What the kernels' arguments of each take lies outside torch's allocator.
std::size_t MostPasses(const Engine::Core& core) {
  const plan::Plan& plan = core.plan;
  if (plan.device_budget == 0) return kMostPasses;
  if (plan.operator_bytes == 0) return 0;  // not known
  const plan::TagBytes engine = plan.BytesOfRank(core.ranks->rank(), plan::Tier::kDevice);
  const std::int64_t room = plan.device_budget - plan.outside_bytes - 2 * plan.operator_bytes -
                            std::accumulate(engine.begin(), engine.end(), std::int64_t{0});
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(room / kPassBytes, 0, static_cast<std::int64_t>(kMostPasses)));
}

std::string WhyNot(const Engine::Core& core) {
  const plan::Plan& plan = core.plan;
  if (plan.world_size > 1) return "ranks exchange gradients while a backward pass runs";
  for (const plan::UnitPlan& unit : plan.units) {
    if (!unit.resident || unit.home != plan::Tier::kDevice) {
      return "weights or optimizer state are on the host";
    }
  }
  if (core.settings.recompute) return "blocks are recomputed (ullage.recompute)";
  if (plan.device_budget > 0 && MostPasses(core) == 0) {
    return "recordings have memory of their own, for which ullage.device_memory leaves no room";
  }
  return "";
}

// Of what decides over the launches of a pass.
std::string KeyOf(const std::vector<at::Tensor>& inputs) {
  std::string key;
  for (const at::Tensor& input : inputs) {
    key += input.defined() ? fmt::format("{}[{}]", c10::toString(input.scalar_type()),
                                         fmt::join(input.sizes(), ","))
                           : "-";
  }
  return key;
}

}  // namespace

RecordedPasses::RecordedPasses(Engine::Core& core) : core_(core) {
  const CudaGraphs wanted = core.settings.ullage.cuda_graphs;
  if (wanted == CudaGraphs::kOff) return;
  std::string reason = core.memory.is_cuda() ? WhyNot(core) : "operators run on the CPU";
  if (wanted == CudaGraphs::kOn && !reason.empty()) {
    throw ConfigError("ullage.cuda_graphs: \"on\" cannot be, because " + reason,
                      "set it to \"auto\" or \"off\"");
  }
  records_ = reason.empty();
  most_passes_ = MostPasses(core);
  if (!core.memory.is_cuda() || core.memory.is_dry()) return;
  if (!reason.empty()) {
    why_not_ = std::move(reason);
    return;
  }
  recorder_ = std::make_unique<torchx::Recorder>(core.memory.device());
}

std::vector<at::Tensor> RecordedPasses::Run(const std::vector<at::Tensor>& inputs,
                                            const Engine::MicroStep& compute) {
  if (!std::exchange(has_begun_, true)) Begin();
  return recorder_ != nullptr ? RunRecorded(inputs, compute) : core_.RunMicroStep(inputs, compute);
}

std::vector<at::Tensor> RecordedPasses::RunRecorded(const std::vector<at::Tensor>& inputs,
                                                    const Engine::MicroStep& compute) {
  // What is baked into recordings.
  if (scale_ != core_.scaler.scale() || layout_ != core_.gradients->sums().layout())
    passes_.clear();
  scale_ = core_.scaler.scale();
  layout_ = core_.gradients->sums().layout();

  Pass* const pass = gave_up_ ? nullptr : FindPass(KeyOf(inputs));
  if (pass == nullptr || !core_.gradients->sums().IsSteady()) return RunOnce(inputs, compute);
  const memory::PhaseScope phase(core_.memory.ledger(), memory::Phase::kBackward);
  const torchx::ProfilerRange range("micro-step");
  core_.CheckPassIsOver();
  const std::uint64_t seed = core_.BeginForward();
  if (pass->recording == nullptr) {
    try {
      Record(*pass, inputs, compute, seed);
    } catch (const std::exception& error) {
      --core_.forwards;  // it comes once more
      GiveUp(error.what());
      return RunOnce(inputs, compute);
    }
  }
  return Launch(*pass, inputs, seed);
}

void RecordedPasses::Begin() {
  if (!why_not_.empty() && core_.ranks->rank() == 0) {
    LogInfo("engine", "micro-steps are launched kernel by kernel and not as CUDA graphs, because " +
                          why_not_);
  }
  if (recorder_ == nullptr) return;
  // Gradients arrive in the queue in which their taps were made.
  seeds_ = std::make_unique<torchx::SeedTable>(core_.memory.device());
  recorder_->Run([this] { core_.gradients->RenewAllTaps(); });
}

// Null when a pass with this key is to run kernel by kernel.
RecordedPasses::Pass* RecordedPasses::FindPass(const std::string& key) {
  const auto found = passes_.find(key);
  if (found != passes_.end()) return &found->second;
  if (passes_.size() < most_passes_) {
    passes_.emplace(key, Pass());  // it may never come again
  } else if (!std::exchange(warned_of_shapes_, true)) {
    LogWarn("engine",
            fmt::format("micro-steps have more than {} shapes: those of others are "
                        "launched kernel by kernel; padding to a multiple makes them fewer",
                        most_passes_));
  }
  return nullptr;
}

std::vector<at::Tensor> RecordedPasses::RunOnce(const std::vector<at::Tensor>& inputs,
                                                const Engine::MicroStep& compute) {
  std::vector<at::Tensor> values;
  recorder_->Run([&] { values = core_.RunMicroStep(inputs, compute); });
  return values;
}

void RecordedPasses::Record(Pass& pass, const std::vector<at::Tensor>& inputs,
                            const Engine::MicroStep& compute, std::uint64_t seed) {
  pass.inputs.clear();
  for (const at::Tensor& input : inputs) {
    pass.inputs.push_back(input.defined() ? at::empty_like(input, core_.memory.device()) : input);
  }
  const std::vector<bool> before = core_.gradients->sums().TakeCame();
  const torchx::SeededRandom random(seed, core_.memory.device());
  try {
    pass.recording = recorder_->Record([&] {
      const torchx::SeedTable::Scope scope(*seeds_);
      pass.values = compute(pass.inputs);
      core_.gradients->Backward(pass.values.at(0), scale_, /*retain_graph=*/false);
    });
  } catch (...) {
    core_.gradients->AbandonPass();
    core_.gradients->sums().TakeCame();
    core_.gradients->sums().NoteCame(before);
    throw;
  }
  for (at::Tensor& value : pass.values) value = value.detach();
  pass.seeds = seeds_->count();
  pass.came = core_.gradients->sums().TakeCame();
  core_.gradients->sums().NoteCame(before);
}

std::vector<at::Tensor> RecordedPasses::Launch(Pass& pass, const std::vector<at::Tensor>& inputs,
                                               std::uint64_t seed) {
  std::vector<at::Tensor> values;
  const torchx::SeededRandom random(seed, core_.memory.device());
  const at::NoGradGuard no_grad;
  recorder_->Run([&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined()) pass.inputs[i].copy_(inputs[i], /*non_blocking=*/true);
    }
    seeds_->DrawAnew(pass.seeds);
    recorder_->Launch(*pass.recording);
    // The next launch writes over what this one has computed.
    for (const at::Tensor& value : pass.values) values.push_back(value.clone());
  });
  ++launches_;
  core_.gradients->sums().NoteCame(pass.came);
  core_.EndBackward();
  return values;
}

void RecordedPasses::GiveUp(const std::string& reason) {
  gave_up_ = true;
  passes_.clear();
  LogWarn("engine",
          fmt::format("a micro-step could not be recorded, so they go on kernel by kernel "
                      "(ullage.cuda_graphs \"off\" does not try): {}",
                      reason.substr(0, reason.find('\n'))));
}

}  // namespace ullage::engine
