#include "optim/trainer.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>

#include "comm/connect.h"
#include "kernels/adamw.h"
#include "kernels/sgd.h"
#include "kernels/weights.h"
#include "support/run_ranks.h"
#include "torchx/dtype.h"

namespace ullage::optim {
namespace {

// Elements [begin, end) of every parameter that this rank holds, and where they lie.
template <typename Body>
void ForEachHeld(const plan::Plan& plan, int rank, const Body& body) {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    if (plan.HeldNumel(static_cast<int>(u)) == unit.unit.slice_numel) {
      for (const layout::Piece& piece : layout::PiecesOfSlice(unit.unit, rank)) {
        body(static_cast<int>(u), piece);
      }
      continue;
    }
    for (const layout::Member& member : unit.unit.members) {
      body(static_cast<int>(u), layout::Piece{member.parameter, 0, member.offset, member.numel});
    }
  }
}

}  // namespace

std::vector<TrainerOptions> EachTier(const TrainerOptions& options) {
  std::vector<TrainerOptions> all(1, options);
  for (const double ratio : {0.0, 0.3, 0.7, 1.0}) {
    all.push_back(options);
    all.back().offload_optimizer = ratio;
  }
  all.push_back(options);
  all.back().offload_optimizer = 0.5;
  all.back().to_disk = true;
  all.back().disk_part_numel = 64;
  if (options.stage < 3) return all;  // weights are offloaded at stage 3 only
  all.push_back(options);
  all.back().offload_param = true;
  all.push_back(all.back());
  all.back().offload_optimizer = 1.0;
  all.push_back(all.back());
  all.back().to_disk = true;
  return all;
}

Trainer::Trainer(comm::Comm& own_comm, const TrainerOptions& options, bool dry)
    : comm(own_comm), memory(memory::Place::kHost, dry) {
  settings.train_micro_batch_size_per_gpu = 1;
  settings.gradient_accumulation_steps = options.accumulation_steps;
  if (options.offload_optimizer) {
    settings.zero.offload_optimizer.device =
        options.to_disk ? OffloadDevice::kNvme : OffloadDevice::kCpu;
    settings.zero.offload_optimizer.ratio = *options.offload_optimizer;
  }
  if (options.offload_param) settings.zero.offload_param.device = OffloadDevice::kCpu;
  if (options.prefetch_numel) {
    settings.zero.prefetch_bucket_size = *options.prefetch_numel;
    settings.given.emplace_back("zero_optimization.stage3_prefetch_bucket_size");
  }
  settings.zero.stage = options.stage;
  settings.zero.param_persistence_threshold = options.persistence_threshold;
  settings.ullage.unit_size = options.unit_bytes;
  settings.ullage.parameter_groups = options.groups;
  settings.precision = options.precision;
  settings.optimizer = options.optimizer;
  const DType dtype = options.precision == Precision::kFloat32    ? DType::kFloat32
                      : options.precision == Precision::kBFloat16 ? DType::kBFloat16
                                                                  : DType::kFloat16;
  std::vector<layout::ParameterSpec> specs;
  const auto add = [&](const std::string& name, std::int64_t numel, bool trainable = true) {
    specs.push_back({name, {numel}, numel, dtype, trainable});
  };
  add("embedding", 900);
  add("weight", 700);
  add("bias", 33);
  add("frozen", 70, false);
  add("empty", 0);
  add("head.weight", 400);
  add("head.bias", 1);
  plan = plan::MakePlan(settings, std::move(specs), {comm.world_size(), comm.AllLocal()});
  if (options.disk_part_numel > 0 && plan.disk_part_numel > 0) {
    plan.disk_part_numel = options.disk_part_numel;
    plan.disk_slot_bytes =
        static_cast<std::int64_t>(plan::kDiskSlots) * plan::MakeDiskLayout(plan).largest_bytes +
        plan::kDiskGrain;
  }
  window_plan = plan::MakeWindowPlan(plan);
  window = std::make_unique<comm::TieredWindow>(comm, window_plan, memory.device());
  groups = MakeGroups(settings, {"bias$"}, plan.parameters);
  store = std::make_unique<params::ParameterStore>(plan, window_plan, comm, *window, memory);
  reducer = std::make_unique<grads::GradientReducer>(plan, window_plan, comm, *window, memory);
  norm = std::make_unique<NormMeter>(plan, *reducer, comm, memory);
  disk_state = std::make_unique<DiskState>(
      plan, comm.rank(), DiskPlace{::testing::TempDir(), "nvme_path", {}}, memory, options.disk);
  optimizer = std::make_unique<SliceOptimizer>(plan, settings.optimizer, groups, *store, *reducer,
                                               *disk_state, comm, memory);
  store->OnWrite([this](int unit, std::int64_t first, std::int64_t numel, const void* before) {
    optimizer->AdoptWrite(unit, first, numel, before);
  });
  const at::TensorOptions where = at::TensorOptions().device(memory.device());
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    const layout::ParameterSpec& spec = plan.parameters[p];
    weights.push_back(at::zeros(spec.shape, where).set_requires_grad(spec.trainable));
    store->Bind(p, {weights.back()});
    if (spec.trainable && spec.numel > 0) reducer->Attach(p, weights.back());
  }
  ForEachHeld(plan, comm.rank(), [&](int unit, const layout::Piece& piece) {
    if (memory.is_dry()) return;
    const at::Tensor start = Start(piece.parameter);
    optimizer->StoreMaster(unit, piece.slice_offset,
                           {start.const_data_ptr<float>() + piece.parameter_offset,
                            static_cast<std::size_t>(piece.numel)});
  });
  for (int unit = 0; unit < static_cast<int>(plan.units.size()); ++unit) store->Publish(unit);
  store->EndUpdate();
}

at::Tensor Trainer::Start(int p) const {
  return at::randn(plan.parameters[p].shape,
                   at::make_generator<at::CPUGeneratorImpl>(std::uint64_t(77 + p)));
}

at::Tensor Trainer::Gradient(int p, int step, int rank) const {
  const auto seed = static_cast<std::uint64_t>(p + 100 * step + 10'000 * rank);
  return at::randn(plan.parameters[p].shape, at::make_generator<at::CPUGeneratorImpl>(seed))
      .to(torchx::ToTorch(plan.parameters[p].dtype));
}

StepParameters Trainer::Parameters(int step) const {
  StepParameters parameters;
  parameters.lr = settings.optimizer.lr * (1 + 0.1 * step);
  parameters.beta1 = settings.optimizer.type == OptimizerType::kAdam ? settings.optimizer.beta1
                                                                     : settings.optimizer.momentum;
  parameters.beta2 = settings.optimizer.beta2;
  parameters.t = step;
  parameters.gradient_factor = 0.37f;
  return parameters;
}

void Trainer::Step(int step) {
  at::Tensor loss;
  for (int p = 0; p < count(); ++p) {
    if (!IsTrained(p)) continue;
    const at::Tensor gradient = Gradient(p, step, comm.rank()).to(memory.device());
    const at::Tensor term = (weights[p] * gradient).to(at::kFloat).sum();
    loss = loss.defined() ? loss + term : term;
  }
  reducer->Backward(loss, 1, false);
  reducer->Complete();
  (void)norm->Measure(static_cast<std::uint32_t>(step));
  store->BeginUpdate();
  std::vector<int> units;
  for (int unit = 0; unit < static_cast<int>(plan.units.size()); ++unit) {
    if (plan.units[unit].unit.trainable && !plan.units[unit].state_on_disk) units.push_back(unit);
  }
  optimizer->Update(units, Parameters(step));
  for (const int unit : units) store->Publish(unit);
  optimizer->UpdateOnDisk(Parameters(step), [&](int unit) { store->Publish(unit); });
  store->EndUpdate();
  if (plan.stage == 0 && plan.world_size > 1) reducer->SumsRead();
  reducer->Clear();
}

Trainer::Held Trainer::Master(int p) const {
  Held held;
  ForEachHeld(plan, comm.rank(), [&](int unit, const layout::Piece& piece) {
    if (piece.parameter != p) return;
    held.first = piece.parameter_offset;
    held.values = at::empty({piece.numel});
    optimizer->LoadMaster(
        unit, piece.slice_offset,
        {held.values.mutable_data_ptr<float>(), static_cast<std::size_t>(piece.numel)});
  });
  return held;
}

void OnTrainers(const TrainerOptions& options, const std::function<void(Trainer&)>& body) {
  auto comms = comm::ConnectThreads(options.world_size, std::chrono::seconds(20));
  testsupport::RunOnThreads(options.world_size, [&](int rank) {
    comm::Comm& comm = *comms[static_cast<std::size_t>(rank)];
    try {
      Trainer trainer(comm, options);
      body(trainer);
      comm.Barrier(99);
    } catch (const std::exception& error) {
      comm.Abort(error.what());
      throw;
    }
  });
}

Reference::Reference(const Trainer& trainer) : trainer_(trainer) {
  for (int p = 0; p < trainer.count(); ++p) {
    master_.push_back(trainer.Start(p));
    if (trainer.settings.precision != Precision::kFloat32 && !trainer.IsTrained(p)) {
      master_.back() = Weights(p).to(at::kFloat);
    }
    first_.push_back(at::zeros_like(master_.back()));
    second_.push_back(at::zeros_like(master_.back()));
  }
}

at::Tensor Reference::Weights(int p) const {
  const layout::ParameterSpec& spec = trainer_.plan.parameters[static_cast<std::size_t>(p)];
  if (!spec.trainable) return master(p).to(torchx::ToTorch(spec.dtype));
  // Note [Master in 16 + 16 bit]: not the rounding of torch's conversion.
  at::Tensor weights = at::empty(spec.shape, torchx::ToTorch(spec.dtype));
  std::vector<float> extension(static_cast<std::size_t>(spec.numel));
  kernels::reference::StoreMaster({spec.dtype, weights.mutable_data_ptr(), extension.data()},
                                  master(p).const_data_ptr<float>(), spec.numel);
  return weights;
}

void Reference::Step(int step) {
  const OptimizerSettings& settings = trainer_.settings.optimizer;
  const StepParameters parameters = trainer_.Parameters(step);
  for (int p = 0; p < trainer_.count(); ++p) {
    if (!trainer_.IsTrained(p) || master(p).numel() == 0) continue;
    at::Tensor sum = at::zeros_like(master(p));
    for (int rank = 0; rank < trainer_.plan.world_size; ++rank) {
      sum += trainer_.Gradient(p, step, rank).to(at::kFloat);
    }
    const Group& group = trainer_.groups.groups[trainer_.groups.of_parameter[p]];
    float* const weights = master(p).mutable_data_ptr<float>();
    const float* const gradients = sum.const_data_ptr<float>();
    float* const first = first_[p].mutable_data_ptr<float>();
    if (settings.type == OptimizerType::kAdam) {
      kernels::AdamWStep adam;
      adam.lr = parameters.lr * group.lr_factor;
      adam.beta1 = parameters.beta1;
      adam.beta2 = parameters.beta2;
      adam.eps = settings.eps;
      adam.weight_decay = group.weight_decay;
      adam.decoupled = settings.adam_w_mode;
      adam.bias_correction = settings.bias_correction;
      adam.t = parameters.t;
      adam.gradient_factor = parameters.gradient_factor;
      kernels::reference::AdamW(adam, {DType::kFloat32, weights}, DType::kFloat32, gradients, first,
                                second_[p].mutable_data_ptr<float>(), sum.numel());
    } else {
      kernels::SgdStep sgd;
      sgd.lr = parameters.lr * group.lr_factor;
      sgd.momentum = parameters.beta1;
      sgd.dampening = settings.dampening;
      sgd.weight_decay = group.weight_decay;
      sgd.nesterov = settings.nesterov;
      sgd.t = parameters.t;
      sgd.gradient_factor = parameters.gradient_factor;
      kernels::reference::Sgd(sgd, {DType::kFloat32, weights}, DType::kFloat32, gradients, first,
                              sum.numel());
    }
  }
}

void ExpectLike(Trainer& trainer, const Reference& reference) {
  for (int p = 0; p < trainer.count(); ++p) {
    EXPECT_TRUE(at::equal(trainer.weights[p].detach().clone(), reference.Weights(p)))
        << "weights of " << trainer.plan.parameters[p].name << " at stage " << trainer.plan.stage;
  }
  for (int p = 0; p < trainer.count(); ++p) {
    const Trainer::Held held = trainer.Master(p);
    if (!held.values.defined()) continue;
    EXPECT_EQ(
        std::memcmp(held.values.const_data_ptr(),
                    reference.master(p).const_data_ptr<float>() + held.first, held.values.nbytes()),
        0)
        << "master of " << trainer.plan.parameters[p].name << " at stage " << trainer.plan.stage;
  }
}

}  // namespace ullage::optim
