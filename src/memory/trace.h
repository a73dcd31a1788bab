// What is allocated on a device in the course of a run, by the engine and by operators, one after
// the other: a prediction when operators run on Meta, a measurement when they run in earnest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memory/ledger.h"
#include "memory/work_log.h"
#include "torchx/operator_watch.h"
#include "torchx/storage_watch.h"

namespace ullage::memory {

// What operators hold, by how long they hold it.
enum class Use : std::uint8_t {
  kInputs,       // there before the forward: batches
  kActivations,  // made in a forward and still there after it, for the backward
  kTemporaries,  // gone by the end of the forward, backward or step that made them
};
inline constexpr std::size_t kUseCount = 3;
inline constexpr std::array<std::string_view, kUseCount> kUseNames = {"inputs", "activations",
                                                                      "temporaries"};
using UseBytes = std::array<std::int64_t, kUseCount>;

class Trace final : public torchx::StorageListener, public LedgerListener {
 public:
  // One change of what is held.
  struct Event {
    std::int64_t bytes = 0;     // below 0: freed; 0: a phase begins
    std::int32_t storage = -1;  // of an operator: index of storages(); -1: the engine's
    Phase phase = Phase::kIdle;
    Tag tag = Tag::kWeights;  // of the engine's
    torchx::Site site;
  };
  struct Storage {
    std::int64_t bytes = 0;
    std::int32_t born = -1, died = -1;        // events; -1: lives on
    std::int32_t born_in = -1, died_in = -1;  // which stretch of one phase
    Phase phase = Phase::kIdle;               // of its birth
    Use use() const;
  };
  // The moment of a phase at which most was held.
  struct Peak {
    Phase phase = Phase::kIdle;
    std::int64_t total = 0;
    TagBytes engine{};
    UseBytes operators{};
    std::int32_t event = -1;             // that brought it
    std::vector<std::int32_t> storages;  // that were held, largest first
  };

  // `watch` tells where events come from; it may be null.
  explicit Trace(const torchx::OperatorWatch* watch = nullptr) : watch_(watch), work_(watch) {}

  void Allocated(const void* storage, std::int64_t bytes) override;
  void Freed(const void* storage) override;  // of what it does not know, nothing
  void Changed(Tag tag, std::int64_t bytes, Tier tier) override;  // kDevice only
  void Entered(Phase phase) override;
  void Passed(Traffic traffic, std::int64_t bytes) override;

  // Of each phase that there was, in the order of the phases. When nobody is followed any more.
  std::vector<Peak> Peaks() const;
  const std::vector<Event>& events() const { return events_; }
  const std::vector<Storage>& storages() const { return storages_; }
  // What else there is to do. The operator watch may be told of it.
  WorkLog& work() { return work_; }
  const WorkLog& work() const { return work_; }

 private:
  void Note(std::int64_t bytes, std::int32_t storage, Tag tag);

  const torchx::OperatorWatch* const watch_;
  mutable std::mutex mutex_;
  WorkLog work_;
  Phase phase_ = Phase::kIdle;
  std::int32_t stretch_ = 0;
  std::vector<Event> events_;
  std::vector<Storage> storages_;
  std::unordered_map<const void*, std::int32_t> held_;
};

}  // namespace ullage::memory
