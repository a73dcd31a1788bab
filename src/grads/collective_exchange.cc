#include <algorithm>
#include <cstring>
#include <utility>

#include "grads/slice_exchange.h"
#include "kernels/accumulate.h"
#include "torchx/profile.h"

namespace ullage::grads {
namespace {

class CollectiveExchange final : public SliceExchange {
 public:
  CollectiveExchange(const plan::Plan& plan, comm::Comm& comm, memory::Memory& memory, SumsOf sums)
      : plan_(plan),
        comm_(comm),
        memory_(memory),
        sums_(std::move(sums)),
        gradients_(plan.units.size()),
        scratch_(memory.Allocate(memory::Tag::kBuckets, {BucketScratchBytes(plan), 0})) {}

  void Begin(std::uint64_t /*backward*/) override {}

  std::byte* Reserve(int index) override {
    memory::Buffer& gradients = gradients_[static_cast<std::size_t>(index)];
    const layout::Unit& unit = plan_.units[static_cast<std::size_t>(index)].unit;
    gradients =
        memory_.Allocate(memory::Tag::kBuckets, {plan::StagingBytes(unit, plan_.world_size), 0});
    return gradients.data();
  }

  void Send(int index, bool has_gradients) override {
    const torchx::ProfilerRange range("reduce", index);
    if (!has_gradients) Reserve(index);
    memory::Buffer& gradients = gradients_[static_cast<std::size_t>(index)];
    ExchangeByBuckets(plan_, comm_, index, gradients.data(), sums_(index), scratch_,
                      static_cast<std::uint32_t>(index));
    gradients = memory::Buffer();
  }

  void Progress() override {}
  void Finish() override {}

 private:
  const plan::Plan& plan_;
  comm::Comm& comm_;
  memory::Memory& memory_;
  const SumsOf sums_;
  std::vector<memory::Buffer> gradients_;
  memory::Buffer scratch_;
};

}  // namespace

std::vector<int> ExchangeOrder(const plan::Plan& plan) {
  std::vector<int> order;
  for (std::size_t unit = plan.units.size(); unit-- > 0;) {
    if (plan.units[unit].unit.trainable) order.push_back(static_cast<int>(unit));
  }
  return order;
}

std::int64_t BucketScratchBytes(const plan::Plan& plan) {
  return 2 * plan.world_size * plan.bucket_numel * ElementBytes(plan.weight_dtype);
}

void ExchangeByBuckets(const plan::Plan& plan, comm::Comm& comm, int index,
                       const std::byte* gradients, float* sums, memory::Buffer& scratch,
                       std::uint32_t item) {
  const layout::Unit& unit = plan.units[static_cast<std::size_t>(index)].unit;
  const std::int64_t element_bytes = ElementBytes(unit.dtype);
  for (std::int64_t first = 0; first < unit.slice_numel; first += plan.bucket_numel) {
    const std::int64_t count = std::min(plan.bucket_numel, unit.slice_numel - first);
    const std::int64_t chunk = count * element_bytes;
    const auto total = static_cast<std::size_t>(chunk * plan.world_size);
    if (scratch.data() == nullptr) {
      comm.AllToAll({}, {}, chunk, item);
      continue;
    }
    std::byte* send = scratch.data();
    std::byte* receive = scratch.data() + total;
    for (int rank = 0; rank < plan.world_size; ++rank) {
      std::memcpy(send + rank * chunk,
                  gradients + (rank * unit.slice_numel + first) * element_bytes,
                  static_cast<std::size_t>(chunk));
    }
    comm.AllToAll({send, total}, {receive, total}, chunk, item);
    for (int rank = 0; rank < plan.world_size; ++rank) {
      kernels::AddToFloat(unit.dtype, receive + rank * chunk, sums + first, count);
    }
  }
}

std::unique_ptr<SliceExchange> MakeCollectiveExchange(const plan::Plan& plan, comm::Comm& comm,
                                                      memory::Memory& memory, SumsOf sums) {
  return std::make_unique<CollectiveExchange>(plan, comm, memory, std::move(sums));
}

}  // namespace ullage::grads
