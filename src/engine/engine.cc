// The way of a step: Forward, Backward, Step.
#include "ullage/engine.h"

#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "base/log.h"
#include "engine/checkpoint_state.h"
#include "engine/core.h"
#include "engine/out_of_memory.h"
#include "engine/recorded_passes.h"
#include "engine/saver.h"
#include "torchx/autograd.h"
#include "torchx/profile.h"
#include "torchx/random.h"

namespace ullage {

using memory::Phase;
using memory::PhaseScope;
using torchx::ProfilerRange;

std::uint64_t Engine::Core::BeginForward() {
  disk_state->CheckIntact();
  gradients->EndOutsidePass();
  store->CheckBindings();
  const auto step = static_cast<std::uint64_t>(applied_steps + skipped_steps);
  const auto index = static_cast<std::uint64_t>(backwards * ranks->world_size() + ranks->rank());
  // A second forward before the backward draws other numbers than the first; one without
  // gradients, such as an evaluation, changes nothing for those that follow.
  const auto again = static_cast<std::uint64_t>(forwards) << 40;
  if (at::GradMode::is_enabled()) ++forwards;
  return torchx::MixSeed(seed, step, index ^ again);
}

at::Tensor Engine::Core::Forward(const std::function<at::Tensor()>& forward) {
  const PhaseScope phase(memory.ledger(), Phase::kForward);
  const ProfilerRange range("forward");
  const torchx::SeededRandom random(BeginForward(), memory.device());
  return WithDeviceErrors(*this, "forward", forward);
}

void Engine::Core::Backward(const at::Tensor& loss, bool retain_graph) {
  const PhaseScope phase(memory.ledger(), Phase::kBackward);
  const ProfilerRange range("backward");
  if (loss.defined() && loss.numel() != 1) {
    throw ConfigError(fmt::format("Backward needs a loss of one element, got {}", loss.numel()),
                      "reduce it with sum() or mean()");
  }
  TellingOthers([&] {
    CheckPassIsOver();
    store->CheckBindings();
    // Peers may have gradients for units that this rank did not use in its forward.
    if (ranks->world_size() > 1) host_updates->Finish();
    WithDeviceErrors(*this, "backward",
                     [&] { gradients->Backward(loss, scaler.scale(), retain_graph); });
    EndBackward();
  });
}

void Engine::Core::EndBackward() {
  ++backwards;
  forwards = 0;
}

std::vector<at::Tensor> Engine::Core::RunMicroStep(const std::vector<at::Tensor>& inputs,
                                                   const MicroStep& compute) {
  std::vector<at::Tensor> values;
  const at::Tensor loss = Forward([&] {
    values = compute(inputs);
    return values.at(0);
  });
  Backward(loss, /*retain_graph=*/false);
  for (at::Tensor& value : values) value = value.detach();
  return values;
}

at::Tensor Engine::Forward(const std::function<at::Tensor()>& forward) {
  return core_->Forward(forward);
}

at::Tensor Engine::Backward(const at::Tensor& loss, bool retain_graph) {
  core_->Backward(loss, retain_graph);
  if (!loss.defined()) return loss;
  return at::div(loss.detach(), static_cast<double>(core_->batch_sizes.accumulation_steps));
}

std::vector<at::Tensor> Engine::ForwardBackward(const std::vector<at::Tensor>& inputs,
                                                const MicroStep& compute) {
  return core_->recorded->Run(inputs, compute);
}

void Engine::Core::ListenToOutsidePasses() {
  gradients->OnOutsidePass(
      {.begin =
           [this] {
             if (scaler.scale() != 1 && !loss_is_scaled) {
               throw StateError(
                   fmt::format("a backward pass of fp16 without the loss scale {}", scaler.scale()),
                   "call engine.backward(loss), or engine.scale(loss).backward()");
             }
             if (ranks->world_size() > 1) host_updates->Finish();
           },
       .end =
           [this] {
             EndBackward();
             loss_is_scaled = false;
           }});
}

void Engine::Core::CheckPassIsOver() {
  gradients->EndOutsidePass();
  if (!gradients->IsInPass()) return;
  throw StateError(
      "a backward pass ended with an error: the gradients since the last step are incomplete",
      ranks->world_size() == 1
          ? "drop them (ClearGradients, engine.zero_grad()) and repeat the step"
          : "end all ranks and resume from a checkpoint");
}

at::Tensor Engine::Scale(const at::Tensor& loss) {
  core_->loss_is_scaled = true;
  return at::mul(loss, core_->scaler.scale());
}

void Engine::ClearGradients() {
  Core& core = *core_;
  if (core.gradients->IsInPass()) core.gradients->AbandonPass();
  core.loss_is_scaled = false;
  core.host_updates->Finish();
  core.gradients->Complete();
  core.gradients->Forget();
  core.backwards = 0;
  core.forwards = 0;
}

bool Engine::IsAccumulationBoundary() const {
  return core_->backwards >= core_->batch_sizes.accumulation_steps;
}

// For the time of a step, which a dry run tells.
void Engine::Core::NoteUpdateTraffic() {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    if (!unit.unit.trainable) continue;
    const auto index = static_cast<int>(u);
    const bool is_beside = plan.IsUpdatedBeside(index);
    memory.ledger().Passed(unit.state_on_disk ? memory::Traffic::kDiskUpdate
                           : is_beside        ? memory::Traffic::kHostUpdate
                                              : memory::Traffic::kUpdate,
                           plan.UpdateBytes(index));
    if (is_beside && plan.sums_dtype(index) == DType::kFloat32) {
      memory.ledger().Passed(memory::Traffic::kHostNorm, 4 * plan.HeldNumel(index));
    }
    if (is_beside && unit.resident) {
      memory.ledger().Passed(memory::Traffic::kUp,
                             plan.HeldNumel(index) * ElementBytes(unit.unit.dtype));
    }
  }
}

void Engine::Core::UpdateWeights(const optim::StepParameters& with) {
  if (memory.is_dry()) NoteUpdateTraffic();
  store->BeginUpdate();
  std::vector<int> units;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const int unit = static_cast<int>(u);
    if (plan.units[u].unit.trainable && !plan.units[u].state_on_disk &&
        !plan.IsUpdatedBeside(unit)) {
      units.push_back(unit);
    }
  }
  const auto update = [&](std::span<const int> together) {
    for (const int unit : together) saver->BeforeChange(unit);
    const ProfilerRange of_units("update", together.size() == 1 ? together.front() : -1);
    optimizer->Update(together, with);
    for (const int unit : together) store->Publish(unit);
  };
  if (plan.on_cuda) {
    update(units);  // in few launches
  } else {
    for (const int& unit : units) update({&unit, 1});
  }
  // The rest is updated on threads, or streamed.
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].unit.trainable) saver->BeforeChange(static_cast<int>(u));
  }
  if (!plan.on_cuda) {
    optimizer->UpdateOnDisk(with, [&](int unit) { store->Publish(unit); });
  }
  host_updates->Start(with);
  store->EndUpdate();
  if (plan.stage == 0 && plan.world_size > 1) gradients->SumsRead();
}

StepResult Engine::Step() {
  Core& core = *core_;
  PhaseScope phase(core.memory.ledger(), Phase::kStep);
  const ProfilerRange range("step");
  return core.TellingOthers([&] {
    core.CheckPassIsOver();
    core.store->CheckBindings();
    if (core.backwards != core.batch_sizes.accumulation_steps &&
        !std::exchange(core.warned_of_accumulation, true)) {
      LogWarn("engine",
              fmt::format("Step() after {} Backward() calls, but there are {} accumulation "
                          "steps: the mean is still taken over {}",
                          core.backwards, core.batch_sizes.accumulation_steps,
                          core.batch_sizes.accumulation_steps));
    }
    StepResult result;
    result.loss_scale = core.scaler.scale();
    result.lr = core.groups.groups.front().LrOf(lr());

    const std::int64_t step = core.applied_steps + core.skipped_steps + 1;
    core.host_updates->Finish();
    core.gradients->Complete();
    core.store->EndReading();
    const optim::GradientNorm norm = [&] {
      const ProfilerRange measure("norm");
      return core.norm->Measure(static_cast<std::uint32_t>(step));
    }();
    const double mean = 1 / (core.accumulation() * result.loss_scale);
    result.grad_norm = norm.is_finite ? std::sqrt(norm.sum_of_squares) * mean : INFINITY;
    core.backwards = 0;
    core.forwards = 0;

    if (!norm.is_finite) {
      result.overflowed = core.plan.parameters[static_cast<std::size_t>(norm.overflowed)].name;
      core.gradients->Forget();
      ++core.skipped_steps;
      core.scaler.Update(/*overflow=*/true);
      return result;
    }

    double clip = 1;  // gradients are divided by it
    if (core.settings.gradient_clipping > 0) {
      clip = std::max(1.0, (result.grad_norm + 1e-6) / core.settings.gradient_clipping);
    }
    result.clip_coef = 1 / clip;

    optim::StepParameters parameters;
    const bool is_adam = core.settings.optimizer.type == OptimizerType::kAdam;
    const auto cycled = core.schedule.MomentumAt(core.applied_steps);
    parameters.lr = lr();
    parameters.beta1 =
        cycled.value_or(is_adam ? core.settings.optimizer.beta1 : core.settings.optimizer.momentum);
    parameters.beta2 = cycled ? optim::Schedule::kCycledBeta2 : core.settings.optimizer.beta2;
    parameters.t = core.applied_steps + 1;
    parameters.gradient_factor = static_cast<float>(mean / clip);

    try {
      core.UpdateWeights(parameters);
    } catch (const std::exception& error) {
      core.ranks->Abort(error.what());  // some weights are new and some old: nobody goes on
      throw;
    }
    core.gradients->Clear();
    core.scaler.Update(/*overflow=*/false);
    core.cap.Renew(core.plan.world_size > 1);
    ++core.applied_steps;
    result.applied = true;
    return result;
  });
}

std::string Engine::SaveCheckpoint(const std::string& folder, const SaveOptions& options) {
  engine::CheckBetweenSteps(*core_, "SaveCheckpoint");
  if (core_->memory.is_dry()) {
    throw StateError("a dry run has nothing to save", "save from an engine that trains");
  }
  core_->store->CheckBindings();
  core_->host_updates->Finish();
  return core_->saver->Save(folder, options);
}

void Engine::FinishSaving() {
  core_->saver->Finish();
}

const Settings& Engine::settings() const {
  return core_->settings;
}
const BatchSizes& Engine::batch_sizes() const {
  return core_->batch_sizes;
}
const Ranks& Engine::ranks() const {
  return *core_->ranks;
}
std::int64_t Engine::applied_steps() const {
  return core_->applied_steps;
}
std::int64_t Engine::skipped_steps() const {
  return core_->skipped_steps;
}
double Engine::lr() const {
  return core_->schedule.LrAt(core_->applied_steps);
}
std::vector<NamedGroup> Engine::groups() const {
  std::vector<NamedGroup> groups;
  for (const optim::Group& group : core_->groups.groups) {
    groups.push_back({group.name, {}, group.LrOf(lr()), group.weight_decay});
  }
  for (std::size_t p = 0; p < core_->plan.parameters.size(); ++p) {
    const layout::ParameterSpec& spec = core_->plan.parameters[p];
    if (!spec.trainable) continue;
    groups[static_cast<std::size_t>(core_->groups.of_parameter[p])].parameters.push_back(spec.name);
  }
  return groups;
}
void Engine::SetGroup(std::size_t group, std::optional<double> lr, double weight_decay) {
  if (group >= core_->groups.groups.size()) {
    throw ConfigError(fmt::format("there is no parameter group {}", group),
                      fmt::format("groups are numbered 0 to {}", core_->groups.groups.size() - 1));
  }
  core_->host_updates->Finish();
  core_->groups.groups[group].lr = lr;
  core_->groups.groups[group].weight_decay = weight_decay;
}
void Engine::SetAccumulationSteps(std::int64_t steps) {
  if (steps < 1) throw ConfigError(fmt::format("{} accumulation steps", steps), "use at least 1");
  engine::CheckBetweenSteps(*core_, "SetAccumulationSteps");
  core_->host_updates->Finish();
  core_->batch_sizes.accumulation_steps = steps;
  core_->gradients->ExpectPasses(steps);
  core_->batch_sizes.train_batch =
      core_->batch_sizes.micro_batch * steps * core_->ranks->world_size();
}
double Engine::loss_scale() const {
  return core_->scaler.scale();
}
std::string Engine::PlanText() const {
  return core_->plan.ToText();
}
std::string Engine::PlanJson() const {
  return core_->plan.ToJson();
}

namespace {

std::vector<std::pair<std::string, std::int64_t>> ByName(const plan::TagBytes& bytes) {
  std::vector<std::pair<std::string, std::int64_t>> named;
  for (std::size_t tag = 0; tag < bytes.size(); ++tag) {
    named.emplace_back(plan::kTagNames[tag], bytes[tag]);
  }
  return named;
}

}  // namespace

MemoryReport Engine::memory() const {
  return {ByName(core_->memory.ledger().now()), ByName(core_->memory.ledger().peak()),
          core_->memory.ledger().peak_total(),
          ByName(core_->memory.ledger().now(memory::Tier::kDevice))};
}

std::vector<std::pair<std::string, std::int64_t>> Engine::planned_bytes() const {
  return ByName(core_->plan.BytesOfRank(core_->ranks->rank()));
}

std::int64_t Engine::planned_bytes_on(std::string_view tier) const {
  const auto found = std::ranges::find(plan::kTierNames, tier);
  if (found == plan::kTierNames.end()) {
    throw ConfigError(fmt::format("there is no tier '{}'", tier), "device, host or disk");
  }
  const plan::TagBytes bytes = core_->plan.BytesOfRank(
      core_->ranks->rank(), static_cast<plan::Tier>(found - plan::kTierNames.begin()));
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

EngineStatistics Engine::statistics() const {
  const params::GatherStatistics gathers = core_->store->statistics();
  return {gathers.gathers,         gathers.gathered_bytes,      gathers.ahead,
          gathers.overflows,       core_->memory.allocations(), core_->recorded->launches(),
          core_->saver->wait_ms(), core_->recorded->records()};
}

std::vector<std::string> Engine::StartLines() const {
  std::vector<std::string> lines = core_->notes;
  for (const std::string& line : core_->groups.Lines()) lines.push_back(line);
  return lines;
}

}  // namespace ullage
