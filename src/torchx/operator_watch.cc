#include "torchx/operator_watch.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>
#include <string_view>

#include "torchx/work_of_operator.h"

namespace ullage::torchx {
namespace {

thread_local OperatorWatch* current = nullptr;

}  // namespace

struct OperatorWatch::Hooks {
  // What was there before the operator, which an operator within it does not change for good.
  struct Before final : at::ObserverContext {
    Before(std::int32_t the_operation, bool was_between)
        : operation(the_operation), between_nodes(was_between) {}
    const std::int32_t operation;
    const bool between_nodes;
    std::optional<WorkOfOperator> work;
    std::int64_t worked = 0, allocated = 0;  // when it began
  };

  static std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
    if (current == nullptr) return nullptr;
    auto before = std::make_unique<Before>(current->site_.operation, current->is_between_nodes_);
    const std::string_view name = function.name();
    current->site_.operation = current->IndexOf(function.name());
    if (name.starts_with("autograd::engine::evaluate_function")) {
      current->is_between_nodes_ = true;
    } else if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      current->is_between_nodes_ = false;
    }
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor()) {
        Use(input.toTensor());
      } else if (input.isTensorList()) {
        for (const at::Tensor& tensor : input.toTensorVector()) Use(tensor);
      }
    }
    ++current->calls_;
    if (current->listener_ != nullptr && function.scope() == at::RecordScope::FUNCTION &&
        current->in_kernel_ == 0) {
      before->worked = current->worked_;
      before->allocated = current->listener_->allocated();
      current->in_kernel_ += before->work.emplace(function).is_kernel() ? 1 : 0;
    }
    return before;
  }

  static void End(const at::RecordFunction&, at::ObserverContext* context) {
    if (current == nullptr || context == nullptr) return;
    const auto& before = static_cast<const Before&>(*context);
    if (before.work) {
      if (before.work->is_kernel()) --current->in_kernel_;
      // What called others is made of them.
      const auto work = before.worked == current->worked_
                            ? before.work->End(current->listener_->allocated() - before.allocated)
                            : std::nullopt;
      if (work) Tell(*work);
    }
    current->site_.operation = before.operation;
    current->is_between_nodes_ = before.between_nodes;
  }

  static void Tell(const OperatorWork& work) {
    ++current->worked_;
    if (current->listener_ != nullptr) current->listener_->Worked(work);
  }

  static void Use(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = current->parameters_.find(tensor.storage().unsafeGetStorageImpl());
    if (found != current->parameters_.end()) current->site_.parameter = found->second;
  }
};

std::int32_t OperatorWatch::IndexOf(const char* name) {
  const auto [place, is_new] = index_.emplace(name, static_cast<std::int32_t>(operations_.size()));
  if (is_new) operations_.emplace_back(name);
  return place->second;
}

bool IsInBackward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

bool RecordsGradients() {
  return c10::GradMode::is_enabled();
}

void NoteKernel(std::initializer_list<at::Tensor> tensors) {
  OperatorWork work;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) work.bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  NoteKernel(work);
}

void NoteKernel(const OperatorWork& work) {
  if (current == nullptr) return;
  ++current->calls_;
  OperatorWatch::Hooks::Tell(work);
}

OperatorWatch::OperatorWatch() {
  TORCH_INTERNAL_ASSERT(current == nullptr, "two watches of one thread");
  current = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&Hooks::Start, &Hooks::End)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  at::removeCallback(handle_);
  current = nullptr;
}

bool OperatorWatch::IsBetweenNodes() {
  return current != nullptr && current->is_between_nodes_;
}

void OperatorWatch::Name(const at::Tensor& tensor, std::int32_t parameter) {
  if (tensor.has_storage()) {
    parameters_.emplace(tensor.storage().unsafeGetStorageImpl(), parameter);
  }
}

}  // namespace ullage::torchx
