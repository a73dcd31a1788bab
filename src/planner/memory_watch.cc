#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "planner/prediction.h"
#include "torchx/operator_watch.h"
#include "torchx/storage_watch.h"
#include "ullage/error.h"

namespace ullage {
namespace {

// Tells a trace in which phase a request comes.
class Phased final : public torchx::StorageListener {
 public:
  explicit Phased(memory::Trace& trace) : trace_(trace) {}

  void Allocated(const void* storage, std::int64_t bytes) override {
    Enter();
    trace_.Allocated(storage, bytes);
  }
  void Freed(const void* storage) override {
    Enter();
    trace_.Freed(storage);
  }

 private:
  void Enter() {
    const memory::Phase phase = torchx::IsInBackward()       ? memory::Phase::kBackward
                                : torchx::RecordsGradients() ? memory::Phase::kForward
                                                             : memory::Phase::kStep;
    if (phase_ == phase) return;
    phase_ = phase;
    trace_.Entered(phase);
  }

  memory::Trace& trace_;
  std::optional<memory::Phase> phase_;
};

}  // namespace

struct MemoryWatch::Followed {
  explicit Followed(bool cuda)
      : trace(&operators),
        phased(trace),
        watch(std::in_place, cuda ? c10::kCUDA : c10::kCPU, phased) {}

  planner::Names names;
  torchx::OperatorWatch operators;
  memory::Trace trace;
  Phased phased;
  std::optional<torchx::StorageWatch> watch;
};

MemoryWatch::MemoryWatch(bool cuda) : followed_(std::make_unique<Followed>(cuda)) {}

MemoryWatch::~MemoryWatch() = default;

void MemoryWatch::Name(const at::Tensor& tensor, std::string name) {
  Followed& followed = *followed_;
  followed.operators.Name(tensor, static_cast<std::int32_t>(followed.names.parameters.size()));
  followed.names.parameters.push_back(std::move(name));
}

MemoryPrediction MemoryWatch::Stop() {
  if (followed_ == nullptr) throw StateError("a watch that has ended", "make another");
  Followed& followed = *followed_;
  followed.watch.reset();
  followed.names.operations = followed.operators.operations();
  MemoryPrediction report = planner::Summarise(followed.trace, followed.names);
  followed_.reset();
  return report;
}

}  // namespace ullage
