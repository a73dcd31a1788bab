#include "params/model_world.h"

#include <mutex>
#include <thread>

#include "base/log.h"
#include "comm/connect.h"
#include "kernels/cast.h"
#include "support/run_ranks.h"
#include "torchx/dtype.h"

namespace ullage::params {
namespace {

float Value(int parameter, std::int64_t element) {
  return static_cast<float>((parameter * 37 + element) % 101 - 50);
}

}  // namespace

layout::ParameterSpec Spec(const std::string& name, std::vector<std::int64_t> shape,
                           bool trainable) {
  layout::ParameterSpec spec;
  spec.name = name;
  spec.numel = 1;
  for (const std::int64_t size : shape) spec.numel *= size;
  spec.shape = std::move(shape);
  spec.trainable = trainable;
  return spec;
}

std::vector<layout::ParameterSpec> DefaultSpecs() {
  return {Spec("embedding", {30, 8}), Spec("square", {16, 16}),      Spec("bias", {16}),
          Spec("wide", {10, 70}),     Spec("empty", {0, 4}),         Spec("norm", {5}),
          Spec("head", {100}),        Spec("frozen", {9, 9}, false), Spec("one", {1})};
}

World::World(comm::Comm& own_comm, const WorldOptions& options) : comm(own_comm) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = options.stage;
  settings.zero.param_persistence_threshold = options.persistence_threshold;
  settings.ullage.unit_size = options.unit_bytes;
  settings.precision = options.precision;
  if (options.offload_optimizer) {
    settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
    settings.zero.offload_optimizer.ratio = *options.offload_optimizer;
  }
  if (options.offload_param) settings.zero.offload_param.device = OffloadDevice::kCpu;
  if (options.prefetch_numel) {
    settings.zero.prefetch_bucket_size = *options.prefetch_numel;
    settings.given.emplace_back("zero_optimization.stage3_prefetch_bucket_size");
  }
  std::vector<layout::ParameterSpec> specs = options.specs.empty() ? DefaultSpecs() : options.specs;
  for (layout::ParameterSpec& spec : specs) {
    spec.dtype = options.precision == Precision::kFloat32    ? DType::kFloat32
                 : options.precision == Precision::kBFloat16 ? DType::kBFloat16
                                                             : DType::kFloat16;
  }
  plan = plan::MakePlan(settings, std::move(specs), {comm.world_size(), comm.AllLocal()});
  window_plan = plan::MakeWindowPlan(plan);
  window = std::make_unique<comm::TieredWindow>(comm, window_plan, memory.device());
  store = std::make_unique<ParameterStore>(plan, window_plan, comm, *window, memory);
  for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
    const layout::ParameterSpec& spec = plan.parameters[p];
    tensors.push_back(at::zeros(spec.shape).set_requires_grad(spec.trainable));
    store->Bind(static_cast<int>(p), {tensors.back()});
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const layout::Unit& unit = plan.units[u].unit;
    const int index = static_cast<int>(u);
    std::vector<layout::Piece> pieces;  // of what this rank holds
    if (plan.HeldNumel(index) == unit.slice_numel) {
      pieces = layout::PiecesOfSlice(unit, comm.rank());
    } else {
      for (const layout::Member& member : unit.members) {
        pieces.push_back({member.parameter, 0, member.offset, member.numel});
      }
    }
    for (const layout::Piece& piece : pieces) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < piece.numel; ++i) {
        values.push_back(Value(piece.parameter, piece.parameter_offset + i));
      }
      kernels::Convert(DType::kFloat32, values.data(), unit.dtype,
                       store->Home(index) + piece.slice_offset * ElementBytes(unit.dtype),
                       piece.numel);
    }
    store->Publish(static_cast<int>(u));
  }
  store->EndUpdate();
}

at::Tensor World::Expected(int p, double add) const {
  const layout::ParameterSpec& spec = plan.parameters[static_cast<std::size_t>(p)];
  at::Tensor values = at::empty({spec.numel});
  for (std::int64_t i = 0; i < spec.numel; ++i) {
    values.mutable_data_ptr<float>()[i] = Value(p, i) + static_cast<float>(add);
  }
  return values.view(spec.shape).to(torchx::ToTorch(spec.dtype));
}

int World::UnitOf(int p) const {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const layout::Member& member : plan.units[u].unit.members) {
      if (member.parameter == p) return static_cast<int>(u);
    }
  }
  return -1;
}

void World::Update(float add, const std::function<void()>& before_publish) {
  comm.Barrier(1);  // the norm's exchange
  store->BeginUpdate();
  if (before_publish) before_publish();
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    if (!unit.unit.trainable) continue;
    const int index = static_cast<int>(u);
    std::vector<float> values(static_cast<std::size_t>(plan.HeldNumel(index)));
    const auto numel = static_cast<std::int64_t>(values.size());
    std::byte* const weights = store->Home(index);
    kernels::Convert(unit.unit.dtype, weights, DType::kFloat32, values.data(), numel);
    for (float& value : values) value += add;
    kernels::Convert(DType::kFloat32, values.data(), unit.unit.dtype, weights, numel);
    store->Publish(index);
  }
  store->EndUpdate();
}

void World::Sweep() {
  at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) (void)(tensor + 1);
}

std::int64_t World::Slots() const {
  return ledger.now()[static_cast<std::size_t>(memory::Tag::kSlots)];
}

std::int64_t World::Buckets() const {
  return ledger.now()[static_cast<std::size_t>(memory::Tag::kBuckets)];
}

std::vector<WorldOptions> EachTier(const WorldOptions& options) {
  std::vector<WorldOptions> all(5, options);
  all[1].offload_optimizer = 1.0;
  all[2].offload_optimizer = 0.5;
  all[3].offload_param = true;
  all[4].offload_param = true;
  all[4].offload_optimizer = 1.0;
  if (options.stage < 3) all.resize(3);  // weights are offloaded at stage 3 only
  return all;
}

void OnWorlds(const WorldOptions& options, const std::function<void(World&)>& body) {
  auto comms = comm::ConnectThreads(options.world_size, options.timeout);
  testsupport::RunOnThreads(options.world_size, [&](int rank) {
    comm::Comm& comm = *comms[static_cast<std::size_t>(rank)];
    try {
      World world(comm, options);
      body(world);
      comm.Barrier(99);  // nobody's window goes while another still reads
    } catch (const std::exception& error) {
      comm.Abort(error.what());
      throw;
    }
  });
}

}  // namespace ullage::params
