#include "activations/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "ullage/error.h"

namespace ullage::activations {
namespace {

namespace ag = torch::autograd;

constexpr std::int64_t kAlignment = 512;  // bytes; torch's allocators give as much or less

// The states of the generators that operators on a device draw from: the CPU's, which our own
// dropout uses everywhere, and the device's own.
class RandomStates {
 public:
  explicit RandomStates(c10::Device device) {
    Add(at::detail::getDefaultCPUGenerator());
    if (!device.is_cpu() && !device.is_meta()) Add(at::globalContext().defaultGenerator(device));
  }

  void Restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator target = generator;
      const std::lock_guard lock(target.mutex());
      target.set_state(state);
    }
  }

 private:
  void Add(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    at::Tensor state = generator.get_state();
    states_.emplace_back(generator, std::move(state));
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Sets the generators for as long as it lives.
class Replay {
 public:
  Replay(const RandomStates& states, c10::Device device) : found_(device) { states.Restore(); }
  ~Replay() { found_.Restore(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  const RandomStates found_;
};

// What the graph keeps besides tensors.
struct Kept final : torch::CustomClassHolder {
  Kept(Block the_block, c10::Device device) : block(std::move(the_block)), random(device) {}
  const Block block;
  const RandomStates random;
};

class RecomputeFunction final : public ag::Function<RecomputeFunction> {
 public:
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            at::TensorList parameters, const c10::intrusive_ptr<Kept>& kept,
                            KeptInputs* inputs) {
    const at::Tensor input = inputs != nullptr ? inputs->Keep(x) : x;
    // Saved, and not captured, so that a parameter that changes before backward is an error.
    ag::variable_list saved = {input};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return kept->block(input);
  }

  static ag::variable_list backward(ag::AutogradContext* context,
                                    const ag::variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw UnsupportedError("a second derivative through a recomputed block",
                             "switch activation_checkpointing off");
    }
    const ag::variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["kept"].toCapsule();
    const auto& kept = static_cast<const Kept&>(*capsule);
    const at::Tensor x = saved[0].detach().set_requires_grad(context->needs_input_grad(0));

    ag::variable_list wanted;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      if (!context->needs_input_grad(i)) continue;
      wanted.push_back(i == 0 ? x : saved[i]);
      places.push_back(i);
    }
    ag::variable_list result(saved.size() + 2);  // for `kept` and `inputs`
    at::Tensor output;
    {
      const Replay replay(kept.random, x.device());
      const at::AutoGradMode with_gradients(true);
      output = kept.block(x);
    }
    if (wanted.empty() || !output.requires_grad()) return result;
    const ag::variable_list found =
        ag::grad({output}, wanted, {gradients[0]}, /*retain_graph=*/false,
                 /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < places.size(); ++i) result[places[i]] = found[i];
    return result;
  }
};

}  // namespace

at::Tensor KeptInputs::Keep(const at::Tensor& x) {
  if (!piece_.defined()) {
    const std::int64_t grain = kAlignment / static_cast<std::int64_t>(x.element_size());
    stride_ = (x.numel() + grain - 1) / grain * grain;
    shape_ = x.sizes().vec();
    piece_ = at::empty({count_ * stride_}, x.options());
  }
  const bool fits = used_ < count_ && x.sizes() == at::IntArrayRef(shape_) &&
                    x.scalar_type() == piece_.scalar_type();
  if (!fits) return x;
  const at::Tensor input = piece_.narrow(0, used_++ * stride_, x.numel()).view(shape_).copy_(x);
  return input.variable_data();  // with a version of its own: others are still written
}

at::Tensor Recompute(const Block& block, const at::Tensor& x,
                     const std::vector<at::Tensor>& parameters, KeptInputs* inputs) {
  const auto wants_gradient = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  const bool is_recorded = at::GradMode::is_enabled() &&
                           (wants_gradient(x) || std::ranges::any_of(parameters, wants_gradient));
  if (!is_recorded) return block(x);
  return RecomputeFunction::apply(x, at::TensorList(parameters),
                                  c10::make_intrusive<Kept>(block, x.device()), inputs);
}

}  // namespace ullage::activations
