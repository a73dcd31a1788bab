#include "torchx/autograd.h"

#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace ullage::torchx {
namespace {

namespace ag = torch::autograd;

class PostHook final : public ag::FunctionPostHook {
 public:
  PostHook(const at::Tensor& leaf, GradientTap::Callback callback)
      : leaf_(leaf.getIntrusivePtr()), callback_(std::move(callback)) {}

  ag::variable_list operator()(const ag::variable_list& outputs,
                               const ag::variable_list& /*inputs*/) override {
    // Weak: the leaf's AccumulateGrad node owns this hook and is owned by the leaf's users.
    const auto impl = leaf_.lock();
    if (impl == nullptr) return outputs;
    at::Tensor leaf(impl);
    at::Tensor gradient = std::exchange(leaf.mutable_grad(), at::Tensor());
    if (gradient.defined()) {
      at::NoGradGuard no_grad;
      callback_(std::move(gradient));
    }
    return outputs;
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> leaf_;
  GradientTap::Callback callback_;
};

}  // namespace

GradientTap::GradientTap(const at::Tensor& leaf, Callback callback)
    : leaf_(leaf.getIntrusivePtr()), node_(ag::impl::grad_accumulator(leaf)) {
  key_ = node_->add_post_hook(std::make_unique<PostHook>(leaf, std::move(callback)));
}

GradientTap::~GradientTap() {
  node_->del_post_hook(key_);
}

bool GradientTap::IsCurrent() const {
  const auto leaf = leaf_.lock();
  return leaf == nullptr || ag::impl::try_get_grad_accumulator(at::Tensor(leaf)) == node_;
}

void VisitGraph(const at::Tensor& loss, const std::function<void(const ag::Node*)>& visit) {
  if (!loss.requires_grad()) return;
  std::unordered_set<const ag::Node*> seen;
  std::vector<const ag::Node*> open;
  const auto reach = [&](const ag::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  const ag::Edge root = ag::impl::gradient_edge(loss);
  reach(root.function.get());
  while (!open.empty()) {
    const ag::Node* node = open.back();
    open.pop_back();
    visit(node);
    for (const ag::Edge& edge : node->next_edges()) reach(edge.function.get());
  }
}

void RunBackward(const at::Tensor& loss, double seed, bool retain_graph) {
  ag::backward({loss}, {at::full_like(loss, seed)}, retain_graph);
}

void AtEndOfBackward(std::function<void(bool outermost)> end) {
  ag::Engine::get_default_engine().queue_callback([end = std::move(end)] {
    const at::NoGradGuard no_grad;
    end(ag::get_current_node() == nullptr);  // a nested pass runs inside a node of another
  });
}

}  // namespace ullage::torchx
