#include "grads/reducer_world.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "comm/connect.h"
#include "kernels/cast.h"
#include "support/run_ranks.h"
#include "torchx/dtype.h"

namespace ullage::grads {
namespace {

// Every peer looks as if it were on another host.
class ApartComm final : public comm::Comm {
 public:
  explicit ApartComm(comm::Comm& comm) : comm_(comm) {}

  int rank() const override { return comm_.rank(); }
  int world_size() const override { return comm_.world_size(); }
  bool IsLocal(int rank) const override { return rank == comm_.rank(); }
  std::chrono::milliseconds timeout() const override { return comm_.timeout(); }
  void Barrier(std::uint32_t item) override { comm_.Barrier(item); }
  void AllReduceSum(std::span<std::int64_t> values, std::uint32_t item) override {
    comm_.AllReduceSum(values, item);
  }
  void AllReduceMin(std::span<std::int64_t> values, std::uint32_t item) override {
    comm_.AllReduceMin(values, item);
  }
  void AllReduceMax(std::span<std::int64_t> values, std::uint32_t item) override {
    comm_.AllReduceMax(values, item);
  }
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::uint32_t item) override {
    comm_.AllGather(mine, all, item);
  }
  void Broadcast(std::span<std::byte> bytes, int root, std::uint32_t item) override {
    comm_.Broadcast(bytes, root, item);
  }
  void AllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                std::int64_t chunk_bytes, std::uint32_t item) override {
    comm_.AllToAll(send, receive, chunk_bytes, item);
  }
  std::unique_ptr<comm::Window> CreateWindow(std::int64_t bytes, int words) override {
    return comm_.CreateWindow(bytes, words);
  }
  void Abort(const std::string& reason) noexcept override { comm_.Abort(reason); }

 private:
  comm::Comm& comm_;
};

layout::ParameterSpec Spec(const std::string& name, std::vector<std::int64_t> shape, DType dtype,
                           bool trainable = true) {
  layout::ParameterSpec spec;
  spec.name = name;
  spec.numel = 1;
  for (const std::int64_t size : shape) spec.numel *= size;
  spec.shape = std::move(shape);
  spec.dtype = dtype;
  spec.trainable = trainable;
  return spec;
}

}  // namespace

World::World(comm::Comm& own_comm, const WorldOptions& options) : comm(own_comm) {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.gradient_accumulation_steps = options.accumulation_steps;
  if (options.offload_optimizer) {
    settings.zero.offload_optimizer.device = OffloadDevice::kCpu;
    settings.zero.offload_optimizer.ratio = *options.offload_optimizer;
  }
  settings.zero.stage = options.stage;
  settings.zero.param_persistence_threshold = options.persistence_threshold;
  settings.zero.reduce_bucket_size = options.bucket_numel * options.world_size;
  settings.ullage.unit_size = options.unit_bytes;
  settings.precision = options.precision;
  const DType dtype = options.precision == Precision::kFloat32    ? DType::kFloat32
                      : options.precision == Precision::kBFloat16 ? DType::kBFloat16
                                                                  : DType::kFloat16;
  plan = plan::MakePlan(
      settings,
      {Spec("a", {30, 8}, dtype), Spec("b", {16, 16}, dtype), Spec("c", {16}, dtype),
       Spec("d", {10, 70}, dtype), Spec("frozen", {9, 9}, dtype, false), Spec("e", {333}, dtype),
       Spec("f", {2, 3, 4}, dtype), Spec("empty", {0, 4}, dtype), Spec("g", {1}, dtype)},
      {comm.world_size(), comm.AllLocal()});
  window_plan = plan::MakeWindowPlan(plan);
  window = std::make_unique<comm::TieredWindow>(comm, window_plan, memory.device());
  reducer = std::make_unique<GradientReducer>(plan, window_plan, comm, *window, memory);
  for (const layout::ParameterSpec& spec : plan.parameters) {
    leaves.push_back(
        at::ones(spec.shape, torchx::ToTorch(dtype)).set_requires_grad(spec.trainable));
    if (spec.trainable && spec.numel > 0) {
      reducer->Attach(static_cast<int>(leaves.size()) - 1, leaves.back());
    }
  }
}

World::~World() = default;

at::Tensor World::Gradient(int p, int pass, int rank) const {
  const auto seed = static_cast<std::uint64_t>(p + 100 * pass + 100'000 * rank);
  return at::randn(leaves[static_cast<std::size_t>(p)].sizes(),
                   at::make_generator<at::CPUGeneratorImpl>(seed))
      .to(leaves[static_cast<std::size_t>(p)].scalar_type());
}

at::Tensor World::Loss(int pass, const std::vector<int>& parameters) const {
  at::Tensor loss;
  for (const int p : parameters) {
    const at::Tensor term =
        (leaves[static_cast<std::size_t>(p)] * Gradient(p, pass, rank())).to(at::kFloat).sum();
    loss = loss.defined() ? loss + term : term;
  }
  return loss;
}

std::vector<int> World::All() const {
  std::vector<int> all;
  for (int p = 0; p < count(); ++p) {
    if (leaves[static_cast<std::size_t>(p)].requires_grad()) all.push_back(p);
  }
  return all;
}

std::int64_t World::Buckets(bool peak) const {
  const memory::TagBytes bytes = peak ? ledger.peak() : ledger.now();
  return bytes[static_cast<std::size_t>(memory::Tag::kBuckets)];
}

void World::ExpectSums(const std::vector<at::Tensor>& expected) const {
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const layout::Unit& unit = plan.units[u].unit;
    if (!unit.trainable) continue;
    const UnitSums of_unit = reducer->Of(static_cast<int>(u));
    std::vector<float> sums(static_cast<std::size_t>(unit.slice_numel));
    kernels::Convert(of_unit.dtype, of_unit.data, DType::kFloat32, sums.data(), unit.slice_numel);
    for (const layout::Piece& piece : layout::PiecesOfSlice(unit, rank())) {
      const auto p = static_cast<std::size_t>(piece.parameter);
      const at::Tensor want = expected[p].contiguous();
      EXPECT_EQ(std::memcmp(sums.data() + piece.slice_offset,
                            want.const_data_ptr<float>() + piece.parameter_offset,
                            static_cast<std::size_t>(4 * piece.numel)),
                0)
          << "'" << plan.parameters[p].name << "' on rank " << rank() << " of " << plan.world_size;
    }
  }
}

std::vector<at::Tensor> World::Zeros() const {
  std::vector<at::Tensor> zeros;
  for (const at::Tensor& leaf : leaves) zeros.push_back(at::zeros(leaf.sizes()));
  return zeros;
}

std::vector<at::Tensor> SumOfPasses(const World& world, int passes,
                                    const std::function<bool(int, int, int)>& gives) {
  std::vector<at::Tensor> sums = world.Zeros();
  for (int pass = 0; pass < passes; ++pass) {
    for (int rank = 0; rank < world.plan.world_size; ++rank) {
      for (const int p : world.All()) {
        if (!gives(p, pass, rank)) continue;
        sums[static_cast<std::size_t>(p)] += world.Gradient(p, pass, rank).to(at::kFloat);
      }
    }
  }
  return sums;
}

void OnWorlds(const WorldOptions& options, const std::function<void(World&)>& body) {
  auto comms = comm::ConnectThreads(options.world_size, options.timeout);
  testsupport::RunOnThreads(options.world_size, [&](int rank) {
    comm::Comm& comm = *comms[static_cast<std::size_t>(rank)];
    ApartComm apart(comm);
    try {
      World world(options.hosts_apart ? static_cast<comm::Comm&>(apart) : comm, options);
      body(world);
      comm.Barrier(99);  // nobody's window goes while another still reads
    } catch (const std::exception& error) {
      comm.Abort(error.what());
      throw;
    }
  });
}

}  // namespace ullage::grads
