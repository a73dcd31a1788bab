#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "grads/slice_exchange.h"
#include "layout/ring.h"
#include "torchx/profile.h"
#include "ullage/error.h"

namespace ullage::grads {
namespace {

// Note [Staging]. A rank lays the gradients of a unit out in its window and raises the unit's
// `published` word; owners add their slices from there and raise `consumed`. Space is given out
// from a ring in the fixed order of units, and only to the unit whose turn it is: then every unit
// that lies in the ring can be published without waiting for one that does not, and waiting for
// space cannot deadlock. A unit whose gradients begin to arrive before its turn waits in a buffer
// of its own. On CUDA laying out and adding are work in queues; words are raised when it is done,
// so the waiting for space is what keeps this thread from running far ahead of the device.
class WindowExchange final : public SliceExchange {
 public:
  WindowExchange(const plan::Plan& plan, const plan::WindowPlan& window_plan, comm::Comm& comm,
                 comm::TieredWindow& window, memory::Memory& memory, Sums& sums)
      : plan_(plan),
        window_plan_(window_plan),
        comm_(comm),
        window_(window),
        memory_(memory),
        sums_(sums),
        adding_(torchx::Queue::Beside(memory.device())),
        order_(ExchangeOrder(plan)),
        ring_(plan.staging_ring_bytes),
        units_(plan.units.size()) {
    claims_.push_back(
        memory.Note(memory::Tag::kBuckets,
                    {plan.staging_ring_bytes + plan.own_staging_bytes + plan.descriptor_bytes, 0}));
  }

  void Begin(std::uint64_t backward) override {
    backward_ = backward;
    adding_.After(Operators().Mark());  // which zeroed the sums
    // Every rank has ended the pass before, and with it the reading of gradients. Starting from an
    // empty ring makes every pass need the same bytes.
    ring_.Clear();
    in_ring_.clear();
    turn_ = 0;
    consume_next_ = 0;
    for (UnitState& unit : units_) unit.reserved = unit.sent = unit.consumed = false;
  }

  std::byte* Reserve(int index) override {
    UnitState& unit = state(index);
    const std::int64_t bytes = plan::StagingBytes(plan_.units[Index(index)].unit, plan_.world_size);
    // Peers may still be reading its gradients of the pass before.
    WaitUntilConsumed(index, unit.staged_in);
    ring_.Remove(index);
    unit.reserved = true;
    unit.place = window_plan_.own_staging[Index(index)];
    if (!unit.place.exists() && !(IsTurnOf(index) && PlaceInRing(index, bytes))) {
      unit.overflow = memory_.Allocate(memory::Tag::kBuckets, {bytes, 0});
      return unit.overflow.data();
    }
    unit.staged_in = backward_;
    if (memory_.is_dry()) return nullptr;
    Operators().Zero(window_.At(unit.place), bytes);
    return window_.At(unit.place);
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
      if (!memory_.is_dry()) Operators().Copy(window_.At(unit.place), unit.overflow.data(), bytes);
      unit.overflow = memory::Buffer();
    }
    unit.sent = true;
    if (memory_.is_dry()) return NoteTraffic(index);
    Descriptor(index) = {backward_, has_gradients ? unit.place.offset : plan::kAllZero};
    window_.SignalAfter(has_gradients ? Operators() : torchx::Queue(),
                        window_plan_.published(index), backward_);
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
    Operators().After(adding_.Mark());
  }

 private:
  struct UnitState {
    bool reserved = false;
    bool sent = false;
    plan::SharedPlace place;
    std::uint64_t staged_in = 0;  // the last backward pass in which it lay there
    bool consumed = false;        // the adding of every rank's gradients has been asked for
    memory::Buffer overflow;      // its gradients while it waits for its turn
  };

  static std::size_t Index(int index) { return static_cast<std::size_t>(index); }
  UnitState& state(int index) { return units_[Index(index)]; }
  torchx::Queue Operators() const { return torchx::Queue::OfOperators(memory_.device()); }
  plan::SharedPlace PlaceOfDescriptor(int index) const {
    return {false,
            window_plan_.descriptors + index * static_cast<std::int64_t>(sizeof(plan::Descriptor))};
  }
  plan::Descriptor& Descriptor(int index) const {
    return *reinterpret_cast<plan::Descriptor*>(window_.At(PlaceOfDescriptor(index)));
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
        state(index).place = window_plan_.staging_ring + placement->offset;
        return true;
      }
      // The oldest block that peers still read: once they have, there is room again.
      const auto oldest = std::ranges::find_if_not(unread, is_open);
      if (oldest == unread.end()) return false;
      const int unit = *oldest;
      // Peers wait for this rank to consume as it waits for them.
      if (state(unit).staged_in == backward_) {
        while (consume_next_ < order_.size() && !state(unit).consumed) {
          AwaitAndConsume(order_[consume_next_]);
        }
      }
      WaitUntilConsumed(unit, state(unit).staged_in);
    }
  }

  void AwaitAndConsume(int index) {
    for (int rank = 0; rank < plan_.world_size; ++rank) {
      window_.Wait(
          rank, window_plan_.published(index), backward_,
          fmt::format("gradients of '{}' in backward pass {}", NameOf(index), backward_).c_str());
    }
    Consume(index);
  }

  void NoteTraffic(int index) {
    const plan::UnitPlan& unit = plan_.units[Index(index)];
    const std::int64_t slice = unit.unit.slice_numel * ElementBytes(unit.unit.dtype);
    memory_.ledger().Passed(memory::Traffic::kFromPeers, slice * (plan_.world_size - 1));
    memory_.ledger().Passed(
        unit.home == plan::Tier::kDevice ? memory::Traffic::kGradients : memory::Traffic::kDown,
        slice * plan_.world_size);
  }

  // Every rank has published the unit: adds this rank's slice of each to the sums, in rank order.
  void Consume(int index) {
    const torchx::ProfilerRange range("reduce", index);
    const layout::Unit& unit = plan_.units[Index(index)].unit;
    const bool on_device = window_plan_.staging_ring.on_device;
    std::vector<const std::byte*> slices;
    for (int rank = 0; rank < plan_.world_size; ++rank) {
      const auto& descriptor =
          *reinterpret_cast<const plan::Descriptor*>(window_.Peer(rank, PlaceOfDescriptor(index)));
      if (descriptor.backward != backward_) {
        throw CommError(
            fmt::format("ranks have diverged: rank {} is in backward pass {}, rank {} in {}, at "
                        "the gradients of '{}'",
                        comm_.rank(), backward_, rank, descriptor.backward, NameOf(index)),
            "call Backward() and Step() equally often on every rank");
      }
      if (descriptor.offset == plan::kAllZero) continue;
      slices.push_back(window_.Peer(rank, {on_device, descriptor.offset}) +
                       comm_.rank() * unit.slice_numel * ElementBytes(unit.dtype));
    }
    sums_.AddSlices(index, slices, adding_);
    state(index).consumed = true;
    window_.SignalAfter(adding_, window_plan_.consumed(index), backward_);
    ++consume_next_;
  }

  const plan::Plan& plan_;
  const plan::WindowPlan& window_plan_;
  comm::Comm& comm_;
  comm::TieredWindow& window_;
  memory::Memory& memory_;
  Sums& sums_;
  const torchx::Queue adding_;
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
                                                  comm::Comm& comm, comm::TieredWindow& window,
                                                  memory::Memory& memory, Sums& sums) {
  return std::make_unique<WindowExchange>(plan, window_plan, comm, window, memory, sums);
}

}  // namespace ullage::grads
