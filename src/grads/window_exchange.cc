#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "grads/slice_exchange.h"
#include "kernels/accumulate.h"
#include "layout/ring.h"
#include "torchx/profile.h"
#include "ullage/error.h"

namespace ullage::grads {
namespace {

// Elements that are added from every rank before the next ones: they stay in the cache.
constexpr std::int64_t kTileNumel = 16 << 10;

// Note [Staging]. A rank lays the gradients of a unit out in its window and raises the unit's
// `published` word; owners add their slices from there and raise `consumed`. Space is given out
// from a ring in the fixed order of units, and only to the unit whose turn it is: then every unit
// that lies in the ring can be published without waiting for one that does not, and waiting for
// space cannot deadlock. A unit whose gradients begin to arrive before its turn waits in a buffer
// of its own.
class WindowExchange final : public SliceExchange {
 public:
  WindowExchange(const plan::Plan& plan, const plan::WindowPlan& window_plan, comm::Comm& comm,
                 comm::Window& window, memory::Memory& memory, SumsOf sums)
      : plan_(plan),
        window_plan_(window_plan),
        comm_(comm),
        window_(window),
        memory_(memory),
        sums_(std::move(sums)),
        order_(ExchangeOrder(plan)),
        ring_(plan.staging_ring_bytes),
        units_(plan.units.size()) {
    claims_.push_back(
        memory.Note(memory::Tag::kBuckets,
                    {plan.staging_ring_bytes + plan.own_staging_bytes + plan.descriptor_bytes, 0}));
  }

  void Begin(std::uint64_t backward) override {
    backward_ = backward;
    // Every rank has ended the pass before, and with it the reading of gradients. Starting from an
    // empty ring makes every pass need the same bytes.
    ring_.Clear();
    in_ring_.clear();
    turn_ = 0;
    consume_next_ = 0;
    for (UnitState& unit : units_) unit.reserved = unit.sent = false;
  }

  std::byte* Reserve(int index) override {
    UnitState& unit = state(index);
    const std::int64_t bytes = plan::StagingBytes(plan_.units[Index(index)].unit, plan_.world_size);
    // Peers may still be reading its gradients of the pass before.
    WaitUntilConsumed(index, unit.staged_in);
    ring_.Remove(index);
    unit.reserved = true;
    unit.offset = window_plan_.own_staging[Index(index)];
    if (unit.offset < 0 && !(IsTurnOf(index) && PlaceInRing(index, bytes))) {
      unit.overflow = memory_.Allocate(memory::Tag::kBuckets, {bytes, 0});
      return unit.overflow.data();
    }
    unit.staged_in = backward_;
    if (memory_.is_dry()) return nullptr;
    std::memset(window_.data() + unit.offset, 0, static_cast<std::size_t>(bytes));
    return window_.data() + unit.offset;
  }

  void Send(int index, bool has_gradients) override {
    UnitState& unit = state(index);
    if (has_gradients && !unit.overflow.empty()) {
      const std::int64_t bytes = unit.overflow.size();
      if (!PlaceInRing(index, bytes)) {
        throw StateError(
            fmt::format("the gradients of '{}' do not fit into the staging ring", NameOf(index)));
      }
      unit.staged_in = backward_;
      if (!memory_.is_dry()) {
        std::memcpy(window_.data() + unit.offset, unit.overflow.data(),
                    static_cast<std::size_t>(bytes));
      }
      unit.overflow = memory::Buffer();
    }
    unit.sent = true;
    if (memory_.is_dry()) return;
    Descriptors(window_.data())[index] = {backward_, has_gradients ? unit.offset : plan::kAllZero};
    window_.Signal(window_plan_.published(index), backward_);
  }

  void Progress() override {
    if (memory_.is_dry()) return;
    while (consume_next_ < order_.size()) {
      const int index = order_[consume_next_];
      if (!state(index).sent) return;
      for (int rank = 0; rank < plan_.world_size; ++rank) {
        if (window_.Peek(rank, window_plan_.published(index)) < backward_) return;
      }
      Consume(index);
    }
  }

  void Finish() override {
    if (memory_.is_dry()) return;
    while (consume_next_ < order_.size()) AwaitAndConsume(order_[consume_next_]);
  }

 private:
  struct UnitState {
    bool reserved = false;
    bool sent = false;
    std::int64_t offset = -1;     // in the window
    std::uint64_t staged_in = 0;  // the last backward pass in which it lay there
    memory::Buffer overflow;      // its gradients while it waits for its turn
  };

  static std::size_t Index(int index) { return static_cast<std::size_t>(index); }
  UnitState& state(int index) { return units_[Index(index)]; }
  const plan::Descriptor* Descriptors(const std::byte* window) const {
    return reinterpret_cast<const plan::Descriptor*>(window + window_plan_.descriptors);
  }
  plan::Descriptor* Descriptors(std::byte* window) const {
    return reinterpret_cast<plan::Descriptor*>(window + window_plan_.descriptors);
  }
  const std::string& NameOf(int index) const {
    const layout::Member& first = plan_.units[Index(index)].unit.members.front();
    return plan_.parameters[Index(first.parameter)].name;
  }

  bool IsTurnOf(int index) {
    // A unit that waits in a buffer of its own still needs a place before those that come later.
    const auto has_place = [](const UnitState& unit) {
      return unit.sent || (unit.reserved && unit.overflow.empty());
    };
    while (turn_ < order_.size() && order_[turn_] != index && has_place(state(order_[turn_]))) {
      ++turn_;
    }
    return turn_ < order_.size() && order_[turn_] == index;
  }

  bool IsConsumed(int index) {
    if (memory_.is_dry()) return true;
    for (int rank = 0; rank < plan_.world_size; ++rank) {
      if (window_.Peek(rank, window_plan_.consumed(index)) < state(index).staged_in) return false;
    }
    return true;
  }

  void WaitUntilConsumed(int index, std::uint64_t backward) {
    if (memory_.is_dry()) return;
    for (int rank = 0; rank < plan_.world_size; ++rank) {
      window_.Wait(rank, window_plan_.consumed(index), backward, NameOf(index).c_str());
    }
  }

  // False when what lies in the ring cannot be sent before this unit.
  bool PlaceInRing(int index, std::int64_t bytes) {
    const auto is_open = [this](int unit) { return state(unit).reserved && !state(unit).sent; };
    while (true) {
      // Looked at once: a peer that is done in between must not make it seem that nobody was in
      // the way.
      std::vector<int> unread;
      std::ranges::copy_if(in_ring_, std::back_inserter(unread),
                           [this](int unit) { return !IsConsumed(unit); });
      const auto in_use = [&](int unit) {
        return is_open(unit) || std::ranges::find(unread, unit) != unread.end();
      };
      if (const auto placement = ring_.Place(index, bytes, in_use)) {
        std::erase_if(in_ring_, [&](int unit) {
          return std::find(placement->evicted.begin(), placement->evicted.end(), unit) !=
                     placement->evicted.end() ||
                 unit == index;
        });
        in_ring_.push_back(index);
        state(index).offset = window_plan_.staging_ring + placement->offset;
        return true;
      }
      // The oldest block that peers still read: once they have, there is room again.
      const auto oldest = std::ranges::find_if_not(unread, is_open);
      if (oldest == unread.end()) return false;
      const int unit = *oldest;
      // Peers wait for this rank to consume as it waits for them.
      if (state(unit).staged_in == backward_) {
        while (consume_next_ < order_.size() && !HasConsumed(unit)) {
          AwaitAndConsume(order_[consume_next_]);
        }
      }
      WaitUntilConsumed(unit, state(unit).staged_in);
    }
  }

  bool HasConsumed(int index) {
    return window_.Peek(comm_.rank(), window_plan_.consumed(index)) >= backward_;
  }

  void AwaitAndConsume(int index) {
    for (int rank = 0; rank < plan_.world_size; ++rank) {
      window_.Wait(
          rank, window_plan_.published(index), backward_,
          fmt::format("gradients of '{}' in backward pass {}", NameOf(index), backward_).c_str());
    }
    Consume(index);
  }

  // Every rank has published the unit: adds this rank's slice of each to the sums, in rank order.
  void Consume(int index) {
    const torchx::ProfilerRange range("reduce", index);
    const layout::Unit& unit = plan_.units[Index(index)].unit;
    const std::int64_t element_bytes = ElementBytes(unit.dtype);
    std::vector<const std::byte*> slices;
    for (int rank = 0; rank < plan_.world_size; ++rank) {
      const std::byte* window = rank == comm_.rank() ? window_.data() : window_.Peer(rank);
      const plan::Descriptor descriptor = Descriptors(window)[index];
      if (descriptor.backward != backward_) {
        throw CommError(
            fmt::format("ranks have diverged: rank {} is in backward pass {}, rank {} in {}, at "
                        "the gradients of '{}'",
                        comm_.rank(), backward_, rank, descriptor.backward, NameOf(index)),
            "call Backward() and Step() equally often on every rank");
      }
      if (descriptor.offset == plan::kAllZero) continue;
      slices.push_back(window + descriptor.offset +
                       comm_.rank() * unit.slice_numel * element_bytes);
    }
    const std::int64_t step = std::min(plan_.bucket_numel, kTileNumel);
    for (std::int64_t first = 0; first < unit.slice_numel; first += step) {
      const std::int64_t count = std::min(step, unit.slice_numel - first);
      for (const std::byte* slice : slices) {
        kernels::AddToFloat(unit.dtype, slice + first * element_bytes, sums_(index) + first, count);
      }
    }
    window_.Signal(window_plan_.consumed(index), backward_);
    ++consume_next_;
  }

  const plan::Plan& plan_;
  const plan::WindowPlan& window_plan_;
  comm::Comm& comm_;
  comm::Window& window_;
  memory::Memory& memory_;
  const SumsOf sums_;
  const std::vector<int> order_;
  std::vector<memory::Claim> claims_;
  layout::Ring ring_;
  std::vector<int> in_ring_;  // oldest first
  std::vector<UnitState> units_;
  std::uint64_t backward_ = 0;
  std::size_t turn_ = 0;          // in order_: the first unit that has neither place nor been sent
  std::size_t consume_next_ = 0;  // in order_
};

}  // namespace

std::unique_ptr<SliceExchange> MakeWindowExchange(const plan::Plan& plan,
                                                  const plan::WindowPlan& window_plan,
                                                  comm::Comm& comm, comm::Window& window,
                                                  memory::Memory& memory, SumsOf sums) {
  return std::make_unique<WindowExchange>(plan, window_plan, comm, window, memory, std::move(sums));
}

}  // namespace ullage::grads
